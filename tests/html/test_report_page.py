"""The report: what it reads, the short form it keeps, what it shows, and that the page is self-contained."""

import json
import math
import re
from html.parser import HTMLParser

import pytest

from touchstone.conformance.cli import main
from touchstone.conformance.discovery import registry
from touchstone.conformance.html import charts, cli, records, timings, verdicts
from touchstone.conformance.html.records import Record
from touchstone.conformance.html.summary import summary
from touchstone.conformance.selftest.record import to_record
from touchstone.conformance.selftest.results import MutantResult, OpResult

ABOUT = {
    "command": "pytest --json a.json",
    "date": "2026-01-02T03:04:05+00:00",
    "commit": "a" * 40,
    "changed": False,
    "versions": {"torch": "2.0"},
    "machine": {"gpu": "Paper"},
}
VOID = {"meta", "line", "br", "wbr"}


class Balanced(HTMLParser):
    """Raises where a tag is closed that is not open; collects ids, and links within the page, to others, elsewhere."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.links, self.pages, self.outside, self.texts = [], [], [], [], [], []

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src"):
                of_report = value.startswith(("report/", "../report.html"))
                (self.links if value.startswith("#") else self.pages if of_report else self.outside).append(value)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing, line {self.getpos()}"

    def handle_data(self, data):
        self.texts.append(data)


def parsed(text):
    found = Balanced()
    found.feed(text)
    assert found.open == []
    assert {link[1:] for link in found.links} <= set(found.ids)
    assert len(found.ids) == len(set(found.ids))
    return found


def outcome(status="passed", dtype="float32", fraction=0.25, findings=()):
    return {
        "trial": "t",
        "status": status,
        "dtype": dtype,
        "fractions": {"y": fraction} if status != "declined" else {},
        "findings": list(findings),
    }


def judged(level="quick", target="paper@cpu", variant="plain", date="2026-01-02", outcomes=None, **more):
    entry = {
        "op": "softmax",
        "target": target,
        "variant": variant,
        "not_run": None,
        "dropped": 0,
        "outcomes": outcomes or [outcome()],
    }
    return {**ABOUT, "date": date, "level": level, "seed": 0, "variants": [{**entry, **more}], "compiled": []}


def timing(name="flash", target="paper@cuda", kind="variant", ms=2.0, S=1024, **more):
    row = {
        "op": "attention",
        "mode": "fwd",
        "target": target,
        "name": name,
        "kind": kind,
        "dtype": "float16",
        "params": {"causal": True},
        "sizes": {"B": 1, "Sq": S, "Skv": S},
        "cache": "cold",
        "status": "measured",
        "problems": [],
        "notes": [],
        "compute": None,
        "ms": ms,
        "host_ms": 0.1,
        "tflops": ms and 100.0 / ms,
        "gbps": ms and 500.0 / ms,
        "fraction": ms and 0.5 / ms,
        "ratios": {"cuDNN": 1.25},
        "peak_bytes": 1e6,
        "resources": None,
        "clocks": {},
        "worst": 0.3,
        "q1": 1.9,
        "q3": 2.1,
        "least": 1.8,
        "count": 9,
        "roof": {"ms": 1.0, "limit": 0.9, "bound": "compute"},
        "samples_ms": [2.0] * 9,
    }
    return {**row, **more}


def bench(*rows):
    ceilings = {
        "device": "cuda",
        "copy": 4e12,
        "read": 4e12,
        "write": 4e12,
        "products": {"float16": 8e14},
        "peak": {},
        "cache": 1,
    }
    return {**ABOUT, "format": 1, "ceilings": ceilings, "left_out": {}, "results": list(rows)}


def planted():
    one = MutantResult(
        "softmax", "one_nan", "nan", "a <NaN>", None, 10, 0, ["a", "b"], {}, ["values normal", "size 2x3"]
    )
    hole = MutantResult("softmax", "subtle", "control flow", "too small", "triton", 10)
    right = MutantResult("softmax", "two_pass", "known-good", "in two passes", None, 12, 2)
    found = OpResult("softmax", "default", 0, [one, hole, right], ["values normal", "size 2x3", "property shift"])
    return {**ABOUT, **to_record([found])}


@pytest.fixture
def write(tmp_path):
    def one(name, what):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(what))
        return path

    return one


def test_the_page_stands_alone_and_every_figure_names_its_record(write, tmp_path, capsys):
    files = [
        write("cpu", judged(outcomes=[outcome(fraction=0.5), outcome("declined")])),
        write("planted", planted()),
        write(
            "gpu", bench(*(timing(S=n, ms=n / 1000) for n in (512, 1024, 2048)), timing("cuDNN", "torch", "baseline"))
        ),
    ]
    assert main(["report", *map(str, files), "-o", str(tmp_path / "r.html")]) == 0
    assert capsys.readouterr().out.startswith(f"wrote {tmp_path / 'r.html'}, ")
    text = (tmp_path / "r.html").read_text()
    found = parsed(text)
    assert found.outside == [] and "<script src" not in text and "url(" not in text and "@import" not in text
    assert {"record-cpu", "record-planted", "record-gpu"} <= set(found.ids)
    for part in ("verdicts", "selftest", "ladders", "rooflines", "sweeps"):
        section = text[text.index(f'<section id="{part}">') :].partition("</section>")[0]
        name = {"verdicts": "cpu", "selftest": "planted"}.get(part, "gpu")
        assert f'href="#record-{name}"' in section, part
    assert "pytest --json a.json" in text and "gpu Paper" in text and "aaaaaaaaaaaa" in text
    assert 'name="viewport"' in text


def test_a_cell_tells_the_worst_error_and_a_failure(write):
    good = records.read(
        [write("a", judged(outcomes=[outcome(fraction=0.25), outcome(dtype="float16", fraction=0.75)]))]
    )
    assert ">0.75<small>1 variant, 2 trials</small>" in verdicts.verdicts(good)
    finding = {"id": "00c0ffee", "check": "values", "message": "y: 1 < 2", "severity": "failure"}
    bad = records.read([write("b", judged(outcomes=[outcome("failed", findings=[finding])]))])
    text = verdicts.verdicts(bad)
    assert "1 failed" in text and "[00c0ffee] values: y: 1 &lt; 2" in text


def test_the_first_section_says_which_variant_is_fastest_whether_it_is_right_and_how_fast(write):
    rows = [timing("slow", ms=4.0), timing("flash", ms=2.0), timing("cuDNN", "torch", "baseline", ms=2.5)]
    small = [timing("flash", S=64, ms=0.1, roof=None)]
    other = bench(timing("tma", ms=9.0))
    other.update(date="2026-01-01", machine={"gpu": "Stone"})
    files = [
        write("right", judged(target="paper@cuda", op="attention", variant="flash")),
        write("gpu", bench(*rows, *small)),
    ]
    found = records.read([*files, write("old", other)])
    kinds = [[r for r in found if r.kind == kind] for kind in ("judged", "bench")]
    text = summary(*kinds, lambda op: f"#{op}")
    assert text.index("Paper, ") < text.index("Stone, 2026-01-01")
    first = text[: text.index("Stone")]
    assert first.count("<tr>") == 2 and 'href="#attention"' in first  # the heading, and one case of one op
    assert "flash <span" in first and "✓ 0.25" in first and "2 ms · 25 % · <b>1.25×</b>" in first and "cuDNN" in first
    assert "not judged" in text[text.index("Stone") :]
    failed = judged(target="paper@cuda", op="attention", variant="flash", outcomes=[outcome("failed")])
    (bad,) = records.read([write("bad", failed)])
    assert "✗ 1 failed" in summary([bad], kinds[1], str)


def test_an_error_that_is_no_number_is_the_worst(write):
    for order in ((math.nan, 0.5), (0.5, math.nan)):
        found = records.read([write("a", judged(outcomes=[outcome(fraction=each) for each in order]))])
        assert math.isnan(verdicts.worst_of(found[0].data["variants"][0])), order
        assert "1 of 1, nan, quick" in verdicts.verdict_table(found).rows[0]


def test_the_highest_level_counts_then_the_newest(write):
    files = [
        write("quick", judged("quick", date="2026-03-01", outcomes=[outcome(fraction=0.1)])),
        write("old", judged("default", date="2026-01-01", outcomes=[outcome(fraction=0.2)])),
        write("new", judged("default", date="2026-02-01", outcomes=[outcome(fraction=0.3)])),
        write("absent", judged("thorough", date="2026-04-01", not_run="needs sm_90")),
    ]
    ((record, variant),) = verdicts.best_known(records.read(files)).values()
    assert record.name == "new" and verdicts.worst_of(variant) == 0.3
    ((record, variant),) = verdicts.best_known(records.read(files[-1:])).values()
    assert "not run" in verdicts.verdicts([record])


def test_the_short_form_says_the_same_and_is_read_again(write, tmp_path):
    files = [
        write("cpu", judged()),
        write("planted", planted()),
        write("gpu", bench(timing(), timing("cuDNN", "torch", "baseline"))),
    ]
    first = records.read(files)
    assert main(["report", *map(str, files), "--keep", str(tmp_path / "kept")]) == 0
    again = records.read(sorted((tmp_path / "kept").glob("*.json")))
    assert {r.name: r.to_dict() for r in again} == {r.name: r.to_dict() for r in first}
    assert "samples_ms" not in (tmp_path / "kept" / "gpu.json").read_text()
    one, hole, right = (tmp_path / "kept" / "planted.json").read_text() and again[-1].data["ops"][0]["judged"]
    assert (one["kills"], one["families"], hole["kills"], right["trials"]) == (2, [0], 0, 10)


def test_the_self_test_shows_holes_and_shares(write):
    text = verdicts.selftests(records.read([write("planted", planted())]))
    assert "<b>1 of 2 mutants are killed</b>, 1 by two trials or more" in text
    assert "<b>no false alarms in 10 checks</b>" in text
    assert "nothing kills subtle" in text and "a &lt;NaN&gt;" in text
    assert "Kill nothing: property shift." in text
    row = re.search(r"<tr><td>nan \(1\)</td>(.*?)</tr>", text)[1]
    assert re.findall(r">(\d*)</td>", row) == ["100", ""]  # values normal, property shift


def test_bars_are_fractions_of_the_roofline_and_what_was_not_measured_says_so(write):
    rows = [
        timing(ms=1.0),
        timing("naive", ms=4.0),
        timing("tma", ms=None, status="failed"),
        timing("cuDNN", "torch", "baseline", ms=0.8),
    ]
    text = timings.ladders(records.read([write("gpu", bench(*rows))]))
    bars = re.findall(
        r'label">(.*?)</span><span class="track"><span class="fill (\w+)" style="width:([\d.]+)%"></span></span>'
        r'<span class="value">(.*?)<',
        text,
    )
    assert bars == [
        ("paper flash", "s0", "50.0", "50 %, 1 ms 1.25×"),
        ("paper naive", "s0", "12.5", "12 %, 4 ms 1.25×"),
        ("paper tma", "s0", "0.0", "failed"),
        ("cuDNN", "baseline", "62.5", "62 %, 0.8 ms 1.25×"),
    ]


def test_the_fastest_variant_of_a_target_and_its_ratio_to_the_first_baseline(write):
    rows = [
        timing("slow", ms=3.0),
        timing("quick", ms=1.0),
        timing("quick (again)", ms=0.5),
        timing(target="other@cuda", ms=None),
        timing("cuDNN", "torch", "baseline", ms=0.8),
    ]
    found = records.read([write("gpu", bench(*rows))])
    (group,) = timings.measured(found).values()
    assert timings.best_of(group, ["other@cuda", "paper@cuda"]) == ["cuDNN", "-", "1.25×, 50 %, quick"]
    assert timings.best_of(group[:2], ["paper@cuda"]) == ["none", "50 %, quick"]
    assert "1.25×, 50 %, quick" in timings.fastest(found)


def test_a_sweep_wants_three_sizes_along_an_axis(write):
    along = [timing(S=n) for n in (512, 1024, 2048)]
    text = timings.sweeps(records.read([write("gpu", bench(*along, timing("other", S=512, peak_bytes=2e6)))]))
    assert text.count('role="img"') == 2 and ">Sq<" in text and "peak memory" in text
    assert timings.sweeps(records.read([write("gpu2", bench(*along[:2]))])) == ""


def test_a_size_of_several_axes_is_no_axis_of_a_sweep(write):
    def sized(n, space):
        return timing(sizes={"N": n, "space": space})

    several = [sized(16, [64, 64]), sized(16, [32, 32]), sized(16, [8, 8])]
    assert timings.sweeps(records.read([write("gpu", bench(*several))])) == ""
    along = [sized(n, [64, 64]) for n in (1, 2, 4)]
    text = timings.sweeps(records.read([write("gpu2", bench(*several, *along))]))
    assert text.count('role="img"') == 1 and ">N<" in text and "space=[64, 64]" in text


def test_other_axes_may_move_in_step_with_it(write):
    def at(B, S):
        return timing(S=S, sizes={"B": B, "Sq": S, "Skv": S})

    (found,) = records.read([write("gpu", bench(at(4, 512), at(2, 1024), at(1, 2048)))])
    assert timings.sweeps([found]).count('role="img"') == 1
    (found,) = records.read([write("gpu", bench(at(4, 512), at(2, 1024), at(1, 2048), at(1, 512), at(1, 1024)))])
    text = timings.sweeps([found])
    assert text.count('role="img"') == 1 and "float16 B=1" in text  # the batch stays


def test_shapes_that_have_nothing_to_do_with_one_another_are_no_sweep(write):
    def at(B, S, Skv):
        return timing(sizes={"B": B, "Sq": S, "Skv": Skv})

    (found,) = records.read([write("gpu", bench(at(4, 512, 64), at(1, 1024, 32), at(2, 2048, 128)))])
    assert timings.sweeps([found]) == ""
    (found,) = records.read([write("gpu", bench(at(4, 512, 32), at(2, 1024, 64), at(1, 2048, 128)))])
    assert timings.sweeps([found]).count('role="img"') == 1


def test_the_newest_of_two_timings_of_one_contestant_counts():
    old = Record("old", "bench", {**ABOUT, "date": "2026-01-01"}, bench(timing(ms=9.0)))
    new = Record("new", "bench", {**ABOUT, "date": "2026-02-01"}, bench(timing(ms=3.0)))
    (((record, row),),) = timings.measured([new, old]).values()
    assert record.name == "new" and row["ms"] == 3.0


def test_a_timing_without_baselines_does_not_displace_one_with_them():
    """One that measures noise, say: it times each variant against itself."""
    rows = timing(ms=9.0), timing("cuDNN", "baseline@cuda", "baseline", 11.0)
    old = Record("old", "bench", {**ABOUT, "date": "2026-01-01"}, bench(*rows))
    alone = timing(ms=3.0, ratios={"itself": 1.0}), timing("tma", ms=2.0, ratios={})
    new = Record("new", "bench", {**ABOUT, "date": "2026-02-01"}, bench(*alone))
    (found,) = timings.measured([new, old]).values()
    assert {row["name"]: row["ms"] for _, row in found} == {"flash": 9.0, "cuDNN": 11.0, "tma": 2.0}
    assert timings.baseline_of(found) == "cuDNN"


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(1, 1000, [1, 10, 100, 1000]), (3, 8, [3, 4, 5, 6, 7, 8]), (0.5, 40, [0.5, 1, 2, 5, 10, 20])],
)
def test_ticks_are_round_and_enough(low, high, ticks):
    axis = charts.Axis([low, high], 0, 100)
    assert [value for value in axis.ticks() if low <= value <= high] == pytest.approx(ticks)
    assert 0 < axis.at(low) < axis.at(high) < 100


@pytest.mark.parametrize(
    ("top", "ticks"), [(750, [0, 200, 400, 600, 800]), (3, [0, 1, 2, 3]), (0.9, [0, 0.2, 0.4, 0.6, 0.8])]
)
def test_an_axis_from_0_has_few_round_ticks(top, ticks):
    assert charts.Linear([top / 3, top], 0, 100).ticks() == pytest.approx(ticks)


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (1234.5, "1,234"), (0.12345, "0.123"), (12.0, "12")])
def test_numbers_have_three_figures(value, text):
    assert charts.number(value) == text


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("absent", None, "No such file"),
        ("text", "hello", "is no JSON"),
        ("other", "[1]", "no record of pytest --json, check --json"),
        ("versions", json.dumps({**ABOUT, "versions": ["torch"], "reports": []}), "a field is of another form"),
        ("machine", json.dumps({**ABOUT, "machine": math.nan, "reports": []}), "a field is of another form"),
        ("row", json.dumps({**ABOUT, "ceilings": {}, "results": [{"op": "softmax"}]}), "is missing"),
    ],
)
def test_what_is_no_record_is_a_usage_error(tmp_path, capsys, name, content, says):
    path = tmp_path / f"{name}.json"
    if content is not None:
        path.write_text(content)
    assert main(["report", str(path), "-o", str(tmp_path / "r.html")]) == 2
    assert f"{path}" in (said := capsys.readouterr().err) and says in said
    assert not (tmp_path / "r.html").exists()


def result(identifier, verdict="passed", reason=None, **report):
    """A line of `judge`; without anything of a report, of a candidate that was not run."""
    made = {"op": "softmax", "name": "kernel", "target": "user@cpu", "verdict": verdict, "findings": [], **report}
    return {
        **{**ABOUT, "format": 2, "kind": "judge", "level": "quick", "seed": 7 if report else None},
        **{"verdict": verdict, "reason": reason, "reports": [made] if report else []},
        **{"candidate": {"id": identifier, "key": "k", "language": None, "seconds": 1.0, "same_as": None}},
    }


def test_results_of_judge_are_read(tmp_path, capsys):
    lines = [
        result("right", outcomes=[outcome(fraction=0.5)]),
        result("wrong", "failed", outcomes=[outcome("failed", fraction="Infinity")]),
        result("broken", "failed", "candidate.py does not import", outcomes=[]),
        result("lacking", "not run", "a package is missing"),
    ]
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"format": 2, "ki')
    (found,) = records.read([path])
    assert {entry["variant"]: (entry["passed"], entry["failed"]) for entry in found.data["variants"]} == {
        "right": (1, 0),
        "wrong": (0, 1),
        "broken": (0, 1),
    }
    assert (found.kind, found.data["seed"], found.data["variants"][1]["worst"]["float32"]["y"]) == (
        "judged",
        7,
        math.inf,
    )
    assert main(["report", str(path), "-o", str(tmp_path / "r.html")]) == 0
    assert "user@cpu broken [-] call: candidate.py does not import" in (tmp_path / "r.html").read_text()
    path.write_text(json.dumps(lines[0]))
    assert main(["report", str(path), "--markdown"]) == 0
    assert "| softmax | 1 of 1, 0.50, quick |" in capsys.readouterr().out


@pytest.mark.parametrize(("clone", "says"), [(True, "docs/results has none"), (False, "an installed Touchstone keeps")])
def test_without_records_it_says_what_to_pass(tmp_path, monkeypatch, capsys, clone, says):
    monkeypatch.setattr(cli, "RESULTS", tmp_path)
    monkeypatch.setattr(registry, "is_clone", lambda: clone)
    assert main(["report"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("python -m touchstone report: RECORD.json: expected files that check, ") and says in told


def test_a_folder_that_is_not_there_is_a_usage_error(write, capsys):
    assert main(["report", str(write("a", judged())), "-o", "/nowhere/r.html"]) == 2
    assert "--output: /nowhere/r.html: No such file" in capsys.readouterr().err


def test_tables_for_a_page_in_markdown(write, capsys):
    files = [
        write("a", judged()),
        write("b", judged(variant="other", outcomes=[outcome("failed")])),
        write("gpu", bench(timing())),
    ]
    assert main(["report", *map(str, files), "--markdown"]) == 0
    told = capsys.readouterr().out
    assert "| softmax | 1 of 2, 0.25, quick |" in told
    assert "| attention | float16 B=1 Sq=1024 Skv=1024, causal=True, cold | none | 25 %, flash |" in told
    assert main(["report", *map(str, files), "--markdown", "-o", "x.html"]) == 2
    assert "--markdown prints" in capsys.readouterr().err


@pytest.mark.slow
def test_what_is_kept_in_the_repository_makes_a_page():
    found = records.read(sorted(cli.RESULTS.glob("*.json")))
    assert {record.kind for record in found} == set(records.KINDS)
    made = cli.pages(found, "report")
    assert {"", "report/softmax.html", "report/attention.html"} <= set(made)
    for name, text in made.items():
        assert len(text.encode()) < cli.LARGEST, name
        page = parsed(text)
        assert page.outside == [] and set(page.pages) <= {*made, "../report.html"}, name
    assert 'href="report/softmax.html"' in made[""] and 'href="../report.html"' in made["report/softmax.html"]
