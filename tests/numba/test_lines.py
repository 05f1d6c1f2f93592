"""From what LLVM says of an instruction to a line of the user's Python, and the numbers that stand for it."""

import importlib.util
import os

import pytest

from touchstone.backends import numba

if numba.why_not("cpu") or numba.simulated():
    pytest.skip(numba.why_not("cpu") or "NUMBA_ENABLE_CUDASIM is set", allow_module_level=True)

from touchstone.backends.emulator.numba.lines import Lines, Merged, Sites

OWN = os.path.dirname(importlib.util.find_spec("numba_cuda").origin)
TEXT = f"""
!1 = !DIFile(filename: "k.py", directory: "/a/b")
!2 = distinct !DISubprogram(name: "k", scope: !1, file: !1, line: 3)
!3 = !DILocation(line: 7, column: 1, scope: !2)
!4 = !DIFile(filename: "arrayobj.py", directory: "{OWN}/numba")
!5 = distinct !DISubprogram(name: "getitem", scope: !4, file: !4, line: 9)
!6 = !DILocation(line: 99, scope: !5, inlinedAt: !3)
!7 = !DILexicalBlock(scope: !2, line: 5)
!8 = !DILocation(line: 8, scope: !7)
!9 = !DILocation(line: 0, scope: !2, inlinedAt: !8)
!10 = !DILocation(line: 99, scope: !5)
!11 = !DIFile(filename: "/c/device.py")
!12 = distinct !DISubprogram(name: "inner", scope: !11, file: !11)
!13 = !DILocation(line: 4, scope: !12, inlinedAt: !3)
!14 = !DILocation(line: 98, scope: !5, inlinedAt: !6)
!15 = !DILocation(line: 5, scope: !16)
!17 = !DILocation(line: 98, scope: !5, inlinedAt: !10)
!16 = !{{}}
"""
PLACES = {
    "3": ("/a/b/k.py", 7),
    "6": ("/a/b/k.py", 7),  # within a function of Numba's own
    "8": ("/a/b/k.py", 8),  # whose scope has no file of its own
    "9": ("/a/b/k.py", 8),  # made by the compiler
    "10": (f"{OWN}/numba/arrayobj.py", 99),  # where there is nothing of the user's
    "17": (f"{OWN}/numba/arrayobj.py", 98),  # the innermost
    "13": ("/c/device.py", 4),  # within a device function
    "14": ("/a/b/k.py", 7),
    "15": ("unknown", 5),
    "77": ("unknown", 0),
}


def test_an_instruction_is_of_the_innermost_line_of_the_users():
    lines = Lines(TEXT)
    for _ in range(2):
        assert {number: lines.of(number) for number in PLACES} == PLACES


BRANCHES = """
define void @other() {
  br label %left
left:                                             ; preds = %0
  br label %meet, !dbg !13
}
define void @k(i1 %c, float %x, ptr %p) {
  br i1 %c, label %left, label %right, !dbg !3
left:                                             ; preds = %0
  %y = fadd float %x, 1.0, !dbg !8
  br label %meet, !dbg !77
right:                                            ; preds = %0
  br label %meet, !dbg !3
"a meet":                                         ; preds = %right, %0
  ret void
meet:                                             ; preds = %right, %left
  br label %last
last:                                             ; preds = %meet
  ret void
two:                                              ; preds = %right, %last
  ret void
}
"""


def test_a_store_of_several_branches_is_of_their_last_lines():
    merged = Merged(BRANCHES + TEXT, Lines(TEXT))
    place = ("/a/b/k.py", 0)
    assert merged.of(2, "meet", place) == ("/a/b/k.py:7 or 8", 0)
    assert merged.of(2, '"a meet"', place) == ("/a/b/k.py", 7)  # both ends are one line
    assert merged.of(2, "meet", ("/c/device.py", 0)) == ("/c/device.py", 0)  # a line of another file says nothing
    for block in ("left", "last", "two", "nowhere"):  # one branch, or an end without a line
        assert merged.of(2, block, place) == place


def test_places_have_numbers_that_the_engine_is_told():
    class Support:
        def __init__(self):
            self.tables = []

        def tsn_sites(self, table):
            self.tables.append(table)

    sites, support = Sites(), Support()
    assert sites.add([("a.py", 3), ("b.py", 4)]) == 1 and sites.add([("c.py", 5)]) == 3
    sites.publish(support)
    (table,) = support.tables
    assert [(table[i].file, table[i].line) for i in range(1, 4)] == [(b"a.py", 3), (b"b.py", 4), (b"c.py", 5)]
    sites.add([("d.py", 6)])
    sites.publish(support)
    assert len(support.tables) == 1 and (table[4].file, table[4].line) == (b"d.py", 6)  # there was room
    sites.add([(f"{n}.py", n) for n in range(9)])
    sites.publish(support)
    assert len(support.tables) == 2
    assert [support.tables[1][i].file for i in (1, 4, 5, 13)] == [b"a.py", b"d.py", b"0.py", b"8.py"]
