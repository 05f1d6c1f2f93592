"""What is cut out of a file of CUDA C++: its declarations, the part that kernels need, and what in it is rewritten."""

import re

import pytest

from touchstone.backends.emulator.declarations import Text, opened

NAMED = {  # a declaration: its names, its kind, whether a kernel may use it
    # variables
    "int n = 4;": ("n", "variable", False),
    "const int n = 3;": ("n", "variable", True),
    "static const float table[] = {1, 2};": ("table", "variable", True),
    "const Pair<int, (2 > 1)> a{1, 2}, *b = &table[3];": ("a b", "variable", True),
    "constexpr char word[] = \"a;b\";": ("word", "variable", True),
    "const char* names[] = {\"a\", \"b\"};": ("names", "variable", False),
    "const std::string s = \"x\";": ("s", "variable", False),
    "const std::vector<int> v = {1};": ("v", "variable", False),
    "const std::map<int, int> m;": ("m", "variable", False),
    "__device__ int x;": ("x", "variable", True),
    "__device__ int x, y;": ("x y", "variable", True),
    "static __constant__ float w[3], u[] = {1, 2};": ("w u", "variable", True),
    "extern __shared__ __align__(16) float room[];": ("room", "variable", True),
    "__managed__ int m = 1 << 2;": ("m", "variable", True),
    "inline constexpr int Rows<4>::width = 4;": ("width", "variable", True),
    "int arr[3] = {1, 2, 3}, other{4};": ("arr other", "variable", False),
    # functions
    "void host() { go(); }": ("host", "function", False),
    "__device__ int f(int x = sizeof(int[2])) { return x; }": ("f", "function", True),
    "__device__ int f(int);": ("f", "function", True),
    "C10_HOST_DEVICE inline int f(int x) { return x; }": ("f", "function", True),
    "constexpr int f(int x) { return x; }": ("f", "function", True),
    "consteval int f() { return 1; }": ("f", "function", True),
    "__host__ __device__ auto f(int a) -> decltype(a + 1) { return a; }": ("f", "function", True),
    "__device__ __attribute__((always_inline)) void f() noexcept(true) {}": ("f", "function", True),
    "[[nodiscard]] __device__ int f() { return 1; }": ("f", "function", True),
    "P::P(int a) : x{a}, y(a) { go(); }": ("P", "function", False),
    "__device__ Q<int>::Q(int a) : Base<int>{a}, x(a) {}": ("Q", "function", True),
    "__device__ float outer::S::get() const { return 1; }": ("outer S get", "function", True),
    "__global__ void k(int (&x)[3]) { f(1); }": ("k", "function", True),
    "template <class T, int N = (1 > 0)> __device__ T f(T x) { return x; }": ("f", "function", True),
    "template <class T> requires std::integral<T> && (sizeof(T) > 2) __device__ T f(T x) { return x; }":
        ("f", "function", True),
    "template <class T> template <int N> __device__ void S<T>::f() {}": ("f", "function", True),
    # operators
    "__device__ V operator*(V a, float b) { return a; }": ("operator", "function", True),
    "V operator-(V a) { return a; }": ("operator", "function", False),
    "__device__ bool operator()(int a) { return a; }": ("operator", "function", True),
    "__device__ operator float() const { return 1; }": ("operator", "function", True),
    "__device__ float S::operator()(int a) const noexcept { return a; }": ("S operator", "function", True),
    "bool operator<(V a, V b) { return a; }": ("operator", "function", False),
    "__device__ auto f() -> struct S { return {}; }": ("f", "function", True),
    "struct S f(struct T t) { return {}; }": ("f", "function", False),
    "static enum E f(struct T t);": ("f", "function", False),
    "__device__ const struct S& f(int a) { g(); return s; }": ("f", "function", True),
    "V operator()(int);": ("operator", "function", False),
    "__device__ float operator\"\"_x(long double v) { return v; }": ("operator", "function", True),
    # types
    "struct S;": ("S", "type", True),
    "struct alignas(16) S { int q; } one, *two;": ("S one two", "type", True),
    "struct S { int q; } one = {1}, two{2};": ("S one two", "type", True),
    "struct S { int q; } one(1);": ("S one", "type", True),
    "class S final : public Base<int, 2> { int f() { return 1; } };": ("S", "type", True),
    "template <> struct S<int> { int x[(1 > 0)]; };": ("S", "type", True),
    "union U { int a; float b; };": ("U", "type", True),
    "enum class E : int { A = 1, B };": ("E A B", "type", True),
    "enum { LOW, HIGH = LOW + 1 };": ("LOW HIGH", "type", True),
    "typedef struct { int a; } T;": ("T", "type", True),
    "typedef unsigned long long Word;": ("Word", "type", True),
    "typedef float (*Fn)(int);": ("Fn", "type", True),
    "using T = Pair<int, float>;": ("T", "type", True),
    "template <class T> using Two = Pair<T, T>;": ("Two", "type", True),
    "template <class T> concept C = requires(T t) { t.x; };": ("C", "type", True),
    "using std::max;": ("max", "type", True),
    "using std::chrono::seconds;": ("seconds", "type", True),
    "using other::cub::f;": ("f", "using", True),
    "using other::f;": ("f", "using", True),
    "using namespace std::chrono;": ("std chrono", "using", True),
    "namespace fs = std::filesystem;": ("fs", "using", True),
    # neither
    "template __device__ int f<int>(int);": ("", "instance", False),
    "template class S<int>;": ("", "instance", False),
    "template class S<float, 2>;": ("", "instance", False),
    "template struct S<>;": ("", "instance", False),
    "template void f<1>();": ("", "instance", False),
    "static_assert(sizeof(int) == 4, \"four; bytes\");": ("", "assertion", False),
}  # fmt: skip


@pytest.mark.parametrize("declaration", NAMED)
def test_a_declaration_has_its_names_and_ends_where_it_ends(declaration):
    names, kind, device = NAMED[declaration]
    read = Text(f"int first;\n{declaration}\nvoid last() {{}}")
    first, one, last = read.declarations
    assert (first.names, last.names, last.kind) == ({"first"}, {"last"}, "function")
    assert (one.kind, one.device) == (kind, device)
    arguments = set(re.findall(r"\w+", " ".join(re.findall(r"<.*>|\(.*\)|__align__|\{.*\}", declaration))))
    assert set(names.split()) <= one.names
    if kind != "variable":  # of which what only looks like a name does no harm
        assert one.names == set(names.split())
    else:
        assert one.names <= {*names.split(), *arguments, "table"}
    text = re.sub(r"^\[\[.*?\]\] ", "", declaration)
    assert read.source_of((one.first, one.last + 1)) == text and text in read.piece(one)
    assert read.source_of((one.first, one.first)) == ""


SCOPES = """
namespace a::b { inline namespace v1 { namespace { struct deep {}; } } int middle; }
namespace [[deprecated("use a")]] old { int attributed; }
namespace a::inline v2 { int in_line; }
extern "C" { int plain; namespace c { int inner; } }
extern "C" int alone;
inline int no_namespace;
namespace __attribute__((visibility("default"))) { int hidden; }
}; )  // one brace too many
int after;
"""


def test_declarations_know_their_namespaces():
    found = {name: d.scopes for d in Text(SCOPES).declarations for name in d.names}
    assert found == {
        "deep": ("a", "b", "inline v1", ""),
        "middle": ("a", "b"),
        "attributed": ("old",),
        "in_line": ("a", "v2"),
        "plain": (),
        "inner": ("c",),
        "alone": (),
        "no_namespace": (),
        "hidden": ("",),
        "after": (),
    }


def kernel(text):
    (found,) = (d.kernel for d in Text(text).declarations if d.kernel)
    return found


def test_a_kernel_has_its_parameters():
    text = """
namespace a { namespace { inline namespace v2 {
template <class T, int N>
__global__ void __launch_bounds__(128, f(1, 2)) __cluster_dims__(2, N, 1)
k(const float* __restrict__ x, int n = f(1, 2), Pair<int, 3> pair, T rows[3], unsigned,
  const __grid_constant__ Map map = {1, 2}) { }
} } }
"""
    found = kernel(text)
    assert (found.name, found.template, found.scopes) == ("a::k", True, ("a", "", "inline v2"))
    assert found.parameters == ("x", "n", "pair", "rows", "", "map")
    assert found.types == (
        "const float * __restrict__", "int", "Pair < int , 3 >", "T [ 3 ]", "unsigned", "const __grid_constant__ Map",
    )  # fmt: skip
    assert (found.cluster, found.file, found.line) == ("2 , N , 1", "", 3)
    assert kernel("__global__ void none() {}")[:4] == ("none", False, (), ())
    assert kernel("\n__global__ void none(void) {}").parameters == ("",)
    unnamed = kernel("__global__ void k(float*, const Pair<int, 2>, int[3]) {}")
    assert unnamed.parameters == ("", "", "") and unnamed.types == ("float *", "const Pair < int , 2 >", "int [ 3 ]")
    assert [d.kernel for d in Text("__global__ void k(int); __device__ void f() {}").declarations] == [None, None]


def test_a_kernel_is_of_c_linkage_where_its_words_or_an_earlier_declaration_or_a_block_say_so():
    text = """
extern "C" __global__ void own(int) {}  __global__ void none(int) {}
extern "C" { __global__ void in_block() {} namespace a { __global__ void deeper() {} } void host() {}
extern "C++" { __global__ void other_block() {} } extern "C++" __global__ void other() {} }
__global__ void behind() {}
extern "C" __global__ void before(float*, int n); __global__ void after(int);
__global__ void before(float* x, int) {} __global__ void before(float* x) {} extern "C" __global__ void after(int) {}
template <class T> __global__ void of_template() {}
"""
    read = Text(text)
    assert [d.kernel.name for d in read.declarations if d.kernel and d.kernel.extern_c] == [
        *("own", "in_block", "a::deeper", "before", "after")
    ]
    assert sum(d.kernel is not None for d in read.declarations) == 11


def test_a_kernel_has_the_parameters_of_its_template():
    def given(parameters):
        return kernel(f"template <{parameters}> __global__ void k() {{}}").given

    assert given("class T, int N = f(1, 2), typename, bool = (2 > 1), Pair<int, 3> P, class... R") == (
        *("T", "N", "", "", "P", "R"),
    )
    assert given("template <class, int> class C, class T = Pair<int, C<T, 1>>") == ("C", "T") and given("") == ()
    assert given("class...") == ("",) and kernel("__global__ void k() {}").given == ()


LINES = """# 1 "a.cu"
int one;
# 7 "lib/b.h" 1
int two;

int three;
# 3 "a.cu" 2
int four;
#line 20 "c.cu"
int five;
#pragma unroll
int six;
# 1 "/usr/include/x.h" 1 3
int outside;
#define MACRO 1
# 1 "/cuda/y.h" 1
int foreign;
# 1 "<built-in>"
int built_in;
# 40 "c.cu" 2
int seven;
"""


def test_declarations_know_their_lines_and_other_peoples_headers_are_left_out():
    read = Text(LINES, ["/cuda/"])
    found = {name: read.place(read.code[d.first].start) for d in read.declarations for name in d.names}
    assert found == {
        "one": ("a.cu", 1), "two": ("lib/b.h", 7), "three": ("lib/b.h", 9), "four": ("a.cu", 3), "five": ("c.cu", 20),
        "six": ("c.cu", 22), "seven": ("c.cu", 40),
    }  # fmt: skip
    assert read.piece(read.declarations[-1]) == '#line 40 "c.cu"\nint seven;'
    assert not {"pragma", "MACRO"} & {token.text for token in read.code}


def test_the_words_of_a_declaration():
    read = Text('__device__ int a = f("b", 3);')
    assert read.words(read.declarations[0]) == {"__device__", "int", "a", "f"}
    assert [d.kind for d in Text("int a = 1; using other::f; int b = 2;").declarations] == [
        "variable",
        "using",
        "variable",
    ]


def needed(text, roots=None, also=()):
    read = Text(text)
    return [read.source_of((d.first, d.last + 1)) for d in read.needed(roots, frozenset(also))]


def test_what_kernels_name_is_kept_in_order_and_host_code_never():
    text = [
        "const int n = 3;",
        "struct Used { int x; };",
        "struct Inner { Used u; };",
        "struct Other { int x; };",
        "__device__ int leaf(Inner i) { return n; }",
        "int leaf(int host);",
        "__device__ int unused() { return 1; }",
        "__device__ V operator+(V a, V b) { return a; }",
        "int main() { unused(); }",
        "__device__ int again(int x) { return x ? again(x - 1) : leaf({}); }",
        "static_assert(n == 3);",
        "template __device__ int again<int>(int);",
        "__global__ void k(int* x) { x[0] = again(1); }",
        "__global__ void l(Other o) { }",
    ]
    both = [text[i] for i in (0, 1, 2, 3, 4, 7, 9, 12, 13)]
    assert needed("\n".join(text)) == both
    assert needed("\n".join(text), ["k"]) == [one for one in both if one not in (text[3], text[13])]
    assert needed("\n".join(text), ["l"]) == [text[3], text[7], text[13]]
    assert needed("\n".join(text), [], ["leaf"]) == [text[i] for i in (0, 1, 2, 4, 7)]
    inside = "namespace a { __global__ void k() {} __global__ void l() {} }"
    for root in ("a::k", "k"):
        assert needed(inside, [root]) == ["__global__ void k() {}"]


def test_namespaces_are_used_that_are_there():
    names = "std nvcuda wmma cooperative_groups cub cuda thrust experimental precision device"
    for name in names.split():
        assert needed(f"using namespace {name};") == [f"using namespace {name};"]
    assert needed("using namespace nvcuda::wmma; using namespace torch::nvcuda;") == ["using namespace nvcuda::wmma;"]
    ours = "namespace ours { inline namespace v1 { __global__ void k() {} } } using namespace ours; using namespace v1;"
    assert needed(ours) == ["__global__ void k() {}", "using namespace ours;", "using namespace v1;"]
    assert needed("namespace theirs { void f() {} } using namespace theirs;") == []
    assert needed("int device; void cub() {} using theirs::cub; using other::f;") == []
    assert needed("using theirs::f; __global__ void k() { f(); }") == ["__global__ void k() { f(); }"]
    alias = "namespace cg = cooperative_groups; using namespace cg; namespace t = torch; using namespace t;"
    assert needed(alias) == ["namespace cg = cooperative_groups;", "using namespace cg;"]


LAUNCHES = """
void run(dim3 grid) {
  const int M = 4, K = M * 8;
  constexpr int Rows{2 + 1};
  using T = Pair<int, float>;
  int N = 5;
  plain<<<1, 2>>>(x);
  a::b::deep<<<grid, f(1, 2), 0>>>(x);
  templated<K, Rows, T, N, (1 > 0), Pair<int, Pair<int, 3>>><<<1, 1>>>(x);
  x = 1 << 3;
}
void other() { again<M><<<1, 1>>>(); }
"""


def test_launches_are_told_with_their_constants_in_the_place_of_names():
    found = [(la.name, la.arguments, la.line) for la in Text(LAUNCHES).launches()]
    arguments = "4 * 8, 2 + 1, Pair<int, float>, N, (1 > 0), Pair<int, Pair<int, 3>>"
    assert found == [("plain", "", 7), ("a::b::deep", "", 8), ("templated", arguments, 9), ("again", "M", 12)]
    for text, name in (("Pair<int>::k<<<1, 1>>>(x);", "k"), ("a::k<<<1, 1>>>(x);", "a::k")):
        assert [la.name for la in Text(text).launches()] == [name]
    assert Text(LAUNCHES).launches()[2].words == {"Pair", "int", "float", "N"}
    for text in ("<<<1, 1>>>(x); int a = 3 <<< 2;", "(k)<<<1, 1>>>(x);", "x; <3><<<1, 1>>>(x);", "; k 3><<<1, 1>>>(x);",
                 "k[0]<<<1, 1>>>(x);", "<1><<<1, 1>>>(x);", "><<<1, 1>>>(x);"):  # fmt: skip
        assert Text(text).launches() == [], text


FIELDS = """
enum Kind { PLAIN };
struct Inner { float low, high; };
union Either { int a; float b; };
template <class T> struct Box {
 public: Inner first;
  int n = 1, m{f(2, 3)};
  static const int shared = 4;
  Inner inner; Inner* far; Inner many[2];
  Kind kind = PLAIN;
  Either either;;
  std::vector<Inner> list;
  private: int (*call)(Inner);
  int get(Inner i) const { return n; }
  struct Nested { int x; };
  using Word = int; using Other::f; typedef struct { int hidden; } Hidden; enum { ONE, TWO };
  struct { int g, h; };
  const Inner also; Inner& near;
  float x, y = f<static_cast<int>(1)>();
  unsigned bits : 3, more : 2;
};
"""


def test_the_fields_of_a_structure():
    read = Text(FIELDS)
    types = {name: d for d in read.declarations for name in d.names}
    assert read.fields("Box", types) == [
        *("first.low", "first.high", "n", "m", "inner.low", "inner.high", "far", "many", "kind", "either", "list"),
        *("call", "g", "h", "also.low", "also.high", "near", "x", "y", "bits", "more"),
    ]
    assert read.fields("Inner", types) == ["low", "high"]
    assert read.fields("Kind", types) == read.fields("Either", types) == read.fields("gone", types) == []
    apart = Text(
        "struct L { int low; }; struct S : public L, L {"
        " union { int a; float b; } one; struct { int c, d; } two; enum { E } kind; union { int e, f; }; int n; };"
    )
    known = {name: d for d in apart.declarations for name in d.names}
    assert apart.fields("S", known) == ["low", "low", "one", "two.c", "two.d", "kind", "e", "n"]
    forward = Text("struct S; struct R { R next; int n; };")
    known = {name: d for d in forward.declarations for name in d.names}
    assert forward.fields("S", known) == []
    assert forward.fields("R", known) == ["next", "n"]  # ends, though it is within itself
    deep = Text("".join(f"struct S{n} {{ S{n - 1} x; }};" for n in range(1, 9)) + "struct S0 { int y; };")
    assert deep.fields("S8", {name: d for d in deep.declarations for name in d.names}) == [".".join("x" * 8) + ".y"]


def removed(text):
    read = Text(text)
    return [read.source_of((first, last + 1)) for d in read.declarations for first, last in read.host_members(d)]


def test_members_for_the_host_are_taken_out():
    text = """
struct S : Base<int> {
  int x;
  void host() { go(); }
  __device__ void kept() {}
  __host__ __device__ int both() const { return x; }
  S() = default; S(const S&) = delete; friend void f(S);
  explicit S(int a) : x{a} { go(); }
  static int asked(int); static void work() { go(); }
  template <class T> T made();
  struct Inner { void deep(); __device__ void also(); };
};
"""
    assert removed(text) == [
        "void host() { go(); }",
        "explicit S(int a) : x{a} { go(); }",
        "static void work() { go(); }",
        "template <class T> T made();",
        "void deep();",
    ]
    assert removed("template <class T, class U> struct Plain { int x; };") == []
    assert removed("union U { int x; void host(); };") == ["void host();"]
    assert removed("class C { void host(); };") == removed("template <class T> struct C { void host(); };")
    assert removed("class C { void host(); };") == ["void host();"]
    assert removed("enum E { A = f(1), B }; typedef struct { void host(); } T;") == ["void host();"]
    assert removed("struct S { int (*f(int a))(int) { go(); } };") == ["int (*f(int a))(int) { go(); }"]
    pointers = "int (*f)(int); int (&g)(int); int (h)(int); int (S::*m)(int);"
    assert removed(f"struct S {{ {pointers} }};") == ["int (&g)(int);", "int (h)(int);", "int (S::*m)(int);"]
    assert removed("struct S : B { using B::operator=; void host() { go(); } };") == ["void host() { go(); }"]
    assert removed("__device__ struct S f() { S s(); void g(); return s; }") == []
    assert removed("struct Forward; class Of;") == removed("void f() { struct L { void g(); }; }") == []


def test_assembly_is_taken_apart():
    text = """__device__ void f(int a) {
  asm volatile("mov %0, %1;" "exit;" : "=r"(g(a, 1)), "+r"(b) : "r"(a ? b : c), [name] "l"(d) : "memory");
  asm("bar;"); __asm__("x;" :: "r"(a)); __asm volatile("y;" : "=r"(a));
}"""
    read = Text(text)
    (one,) = read.declarations
    found = [
        (read.source_of((first, last + 1)), [[read.source_of(part) for part in parts] for parts in lists])
        for first, last, lists in read.assembly(one)
    ]
    lists = [['"mov %0, %1;" "exit;"'], ['"=r"(g(a, 1))', '"+r"(b)'], ['"r"(a ? b : c)', '[name] "l"(d)'], ['"memory"']]
    assert [each for _, each in found] == [
        lists, [['"bar;"']], [['"x;"'], [], ['"r"(a)']], [['"y;"'], ['"=r"(a)']],
    ]  # fmt: skip
    assert [text.split("(")[0] for text, _ in found] == ["asm volatile", "asm", "__asm__", "__asm volatile"]
    assert all(text.endswith(")") for text, _ in found)
    edits = [(first, last, "X") for first, last, _ in read.assembly(one)]
    assert read.piece(one, edits) == '#line 1 ""\n__device__ void f(int a) {\n  X;\n  X; X; X;\n}'


def test_what_stands_for_several_lines_keeps_the_lines_after_it():
    read = Text('void f() {\n  asm(\n    "x"\n  ); g();\n}')
    (one,) = read.declarations
    ((first, last, _),) = read.assembly(one)
    assert read.piece(one, [(first, last, "Y")]) == '#line 1 ""\nvoid f() {\n  Y\n#line 4 ""\n; g();\n}'


def within(text, spans):
    read = Text(text)
    (one,) = read.declarations
    return [read.source_of((first, last + 1)) for first, last in spans(read, one)]


def test_launches_in_device_code():
    text = "void k() { if (a < b) child<<<1, f(2)>>>(x, y); a::deep<Pair<int, 2>, (3 > 1)><<<1, 1>>>(z); }"
    assert within(text, lambda read, one: read.device_launches(one)) == [
        "child<<<1, f(2)>>>(x, y)", "a::deep<Pair<int, 2>, (3 > 1)><<<1, 1>>>(z)",
    ]  # fmt: skip


def test_plain_calls():
    calls = (
        "free(a); return malloc(1); x.free(b); y->free(c); std::free(d); int free(e); else free(g); &free; do free(h);"
    )
    read = Text(f"int f() {{ {calls} }}")
    found = [(at, name) for at, name in read.calls(read.declarations[0], {"free", "malloc"})]
    assert [read.code[at + 2].text for at, _ in found] == ["a", "1", "g", "h"]
    assert [name for _, name in found] == ["free", "malloc", "free", "free"]


def test_attributes_that_no_gpu_has():
    def found(text):
        read = Text(text)
        return list(read.host_attributes(read.declarations[-1]))

    assert found("__device__ __attribute__((noinline, __constructor__, unused)) void f() {}") == ["constructor"]
    assert found('__device__ void f() { [[gnu::no_sanitize("x")]] int a; }') == ["no_sanitize"]
    assert found('__device__ __attribute((section("x"), alias("y"))) int a;') == ["section", "alias"]
    assert found("__device__ void constructor() { section(alias); a[b[0]]; }") == []


def test_words_beside_those_in_brackets():
    read = Text("__noinline__ void f() { __attribute__((__noinline__)) g(__noinline__); } __noinline__ int h();")
    assert [read.code[at].start for at in read.places(read.declarations[0], "__noinline__")] == [0]
    assert len(list(read.places(read.declarations[1], "__noinline__"))) == 1


def test_lists_are_split_at_their_own_commas():
    read = Text("f(a, (b, c), {d, e}, g[1, 2], Pair<int, 3>(1), x < y, z)")
    parts = [read.source_of(part) for part in read.split(2, len(read.code) - 1)]
    assert parts[:5] == ["a", "(b, c)", "{d, e}", "g[1, 2]", "Pair<int, 3>(1)"]
    assert read.split(2, 2) == []
    read = Text("f(Pair<3, 4> a, 2 < b, c > 1, (x) < y, z)")
    parts = [read.source_of(part) for part in read.split(2, len(read.code) - 4)]
    assert parts == ["Pair<3, 4> a", "2 < b", "c > 1", "(x) < y", "z"]


ALL = f"""{LINES} {SCOPES} {FIELDS} {LAUNCHES}
template <class T, int N = 3> requires (sizeof(T) > 2) __global__ void __cluster_dims__(2) k(T x[3], int n = f(1)) {{
  asm volatile("mov %0, %1;" : "=r"(a) : [b] "r"(b) : "memory"); if (free(a)) child<T, (1 > 0)><<<1, 2>>>(x);
  [[gnu::section("x")]] __attribute__((naked)) int b;
}}
template __device__ int f<int>(int); using std::max; using namespace a; typedef float (*Fn)(int);
S::S(int a) : x{{a}} {{ go(); }} bool S::operator()(int a) {{ return a; }} enum class E : int {{ A = 1 }} e;
"""


def test_a_text_that_ends_too_early_is_read_to_its_end():
    """The compiler says what is wrong with it."""
    whole = Text(ALL)
    for token in whole.code:
        read = Text(ALL[: token.start])
        read.needed()
        read.launches()
        types = {name: one for one in read.declarations for name in one.names}
        for name in types:
            read.fields(name, types)
        for one in read.declarations:
            read.piece(one)
            assembly = [(first, last) for first, last, _ in read.assembly(one)]
            for first, last in (*read.host_members(one), *read.device_launches(one), *assembly):
                assert one.first <= first <= last
            assert {*read.host_attributes(one)} <= {"section", "naked"}
            assert all(one.first <= at <= one.last for at, _ in read.calls(one, {"free", "go"}))
            assert all(one.first <= at <= one.last for at in read.places(one, "T"))
            assert one.first <= one.last


QUALIFIERS = [
    "static", "inline", "extern", "const", "constexpr", "volatile", "friend", "virtual", "mutable",
    "__forceinline__", "__inline__", "__noinline__", "__host__", "__restrict__", "__inline", "thread_local",
    "register", "__device__", "__global__", "__constant__", "__shared__", "__managed__", "C10_DEVICE",
    "C10_HOST_DEVICE",
]  # fmt: skip
BRACKETED = [
    "__launch_bounds__", "__maxnreg__", "__cluster_dims__", "__align__", "alignas", "__attribute__", "__declspec__",
    "decltype", "noexcept", "__block_size__", "explicit", "requires", "C10_LAUNCH_BOUNDS_1", "C10_LAUNCH_BOUNDS_2",
]  # fmt: skip
FOR_THE_HOST = [
    "constructor", "destructor", "init_priority", "ifunc", "alias", "weakref", "section", "naked", "cleanup",
    "target", "target_clones", "disable_sanitizer_instrumentation", "no_sanitize", "no_sanitize_address",
]  # fmt: skip


def only(text):
    (found,) = Text(text).declarations
    return found.kind, set(found.names), found.device


@pytest.mark.parametrize("word", QUALIFIERS)
def test_a_qualifier_is_no_name_and_hides_no_type(word):
    assert only(f"{word} struct S {{ int a; }} x;") == ("type", {"S", "x"}, True)
    assert only(f"{word} struct S* f(int a) {{ return 0; }}")[:2] == ("function", {"f"})
    assert only(f"float {word} = 1;")[1] == set()


@pytest.mark.parametrize("word", BRACKETED)
def test_what_stands_in_the_brackets_of_an_attribute_is_no_part_of_a_declaration(word):
    assert only(f"__device__ {word}(g(1), {{x}}) int f(int a) {{ return 1; }}") == ("function", {"f"}, True)
    assert only(f"struct {word}(sizeof(T), 2) S {{ int a; }};") == ("type", {"S"}, True)
    kind, names, device = only(f"__device__ {word}(n = 1) int x[2] = {{1, 2}}, y;")
    assert (kind, device) == ("variable", True) and {"x", "y"} <= names


@pytest.mark.parametrize("word", FOR_THE_HOST)
def test_an_attribute_for_the_host_alone(word):
    for text in (f"__attribute__(({word}(1))) void f();", f"[[a::__{word}__]] int x; [[gnu::{word}]]"):
        read = Text(f"void g() {{ {text} }}")
        assert list(read.host_attributes(read.declarations[0])) == [word] * text.count(word)
    read = Text(f"void {word}() {{ {word}(a[{word}]); }}")
    assert list(read.host_attributes(read.declarations[0])) == []


@pytest.mark.parametrize(
    "word", ["__device__", "__global__", "C10_DEVICE", "C10_HOST_DEVICE", "constexpr", "consteval"]
)
def test_a_function_that_a_kernel_may_call(word):
    assert only(f"{word} int f(int a);") == ("function", {"f"}, True)
    assert only("int f(int a);") == ("function", {"f"}, False)


@pytest.mark.parametrize(
    "word", ["__constant__", "__shared__", "__managed__", "__device__", "const", "constexpr", "C10_DEVICE"]
)
def test_a_variable_that_a_kernel_may_use(word):
    assert only(f"{word} int x = 1;")[::2] == ("variable", True) and only("int x = 1;")[::2] == ("variable", False)
    for text in ("std::string x;", "std::vector<int> x;", "std::map<int, int> x;", 'char x[] = "";'):
        assert only(f"const {text}")[2] is False


def test_built_in_types_are_no_names():
    built_in = "void, bool, char, short, int, long, signed, unsigned, float, double, auto"
    assert only(f"typedef void Fn({built_in});") == ("type", {"Fn"}, True)


def test_what_opens_namespaces():
    assert opened(("a", "", "inline b")) == "namespace a {namespace  {inline namespace b {" and opened(()) == ""


def texts(text):
    read = Text(text)
    return [read.source_of((d.first, d.last + 1)) for d in read.declarations]


def test_where_declarations_end():
    for parts in (
        ["int a = f([](int x) { return x; }, 3);", "int b;"],
        ["int a = (b < c), d;", "bool e = f < g;", "int h;"],
        ["template <class T> requires (sizeof(T) > 2) && C<T> struct S { T x; };", "int b;"],
        ["template <class T> requires C<T> auto f(T x) { return x; }", "int b;"],
        ["template <class T> requires C<T> void f(T x) { }", "int b;"],
        ["using A = int;", "using namespace b;", "using c::d;", "int e;"],
        ["namespace x = a::b;", "int b;"],
        ["struct A { int x = 1; A() : x{2} {} } a = {}, *b;", "int c;"],
        ["enum class E : unsigned { A = 1, B = (2), } e;", "int c;"],
        ["A::A() : x{1}, B<int>{2}, y(3) { z = 1; }", "int c;"],
        ["auto f() -> decltype(g({1})) { return 1; }", "int c;"],
        ["bool S::operator()(int a) { return a; }", "bool operator==(S a, S b) { return 1; }", "int c;"],
        ["S operator[](int i);", "operator bool() { return 1; }", "int c;"],
        ["int a[] = {1, 2}, b{3};", "static_assert(a[0] == 1);", "concept;", "int c;"],
        ["class A;", "class B : A { void f() {} int g; };", "int c;"],
        ["int a([3);", "int c;"],
    ):
        assert texts("\n".join(parts)) == parts
    assert texts("[[a]] int x; [[b(1), c]] [[d]] void f() {}") == ["int x;", "void f() {}"]
    assert texts('extern "C" { int a; } extern "C" int b; namespace { int c; }') == [
        "int a;",
        'extern "C" int b;',
        "int c;",
    ]
    assert texts("int a; } ; ) int b;") == ["int a;", "int b;"]


def test_what_angles_enclose():
    for text, end in (
        ("x < y; z > w", 2),
        ("x < y", 2),
        ("x < k<<<1>>>, 2 > ;", 8),
        ("A<B<C<D>>> x", 7),
        ("A<(1 > 2), {3 > 4}>;", 13),
    ):
        assert Text(text)._angles(1) == end, text


def test_names_of_a_type_and_of_what_is_declared_with_it():
    for text, names in (
        ("struct A : B<int> { int x; } a, *b;", "A a b"),
        ("template <class T> struct A<T, 2> : B { int x; };", "A"),
        ("struct A::B { int x; };", "A B"),
        ("enum E { LOW, HIGH = LOW + f(2) } e;", "E LOW HIGH f e"),
        ("enum E : int;", "E"),
        ("struct __align__(f(x)) A { };", "A"),
        ("class A final : B { };", "A"),
        ("enum class E { X };", "E X"),
        ("enum struct E { X };", "E X"),
    ):
        assert only(text)[:2] == ("type", set(names.split())), text


def test_calls_that_are_none_of_a_function_in_use():
    for text, count in (("x = *f(i);", 0), ("y = &f(j);", 0), ("~f(k);", 0), ("a.f(1); b->f(2); c::f(3);", 0),
                        ("int f(4);", 0), ("f; f[1];", 0),
                        ("return f(5); g(f(6)); else f(7); do f(8);", 4)):  # fmt: skip
        read = Text(f"int g() {{ {text} }}")
        assert len(list(read.calls(read.declarations[0], {"f"}))) == count, text


def test_constants_and_types_of_the_function_around_a_launch():
    def arguments(before, launch="k<A>"):
        return [la.arguments for la in Text(f"void run() {{ {before} {launch}<<<1, 1>>>(x); }}").launches()]

    for before, found in (
        ("const int A = 3;", "3"), ("constexpr int A{3 + 1};", "3 + 1"),
        ("static const int A = f(1, 2), B = 4;", "f(1, 2)"),
        ("using A = Pair<int, 2>;", "Pair<int, 2>"), ("int A = 3;", "A"), ("const int A = 3; if (A == 4) { }", "3"),
        ("const int B = 2; const int A = B * B;", "2 * 2"), ("{ const int A = 5; }", "5"),
        ("const int B = 1, A = B;", "1"),
        ("if (x) { } const int A = 3;", "3"),
        ("const int A = A;", "A"),
        ("const bool A = x < y;", "x < y"), ("A = 3;", "A"), ("const int A = 1; { const int A = 2; }", "2"),
    ):  # fmt: skip
        assert arguments(before) == [found], before
    assert arguments("const bool B = A >= 2;", "k<(A > 1)>") == ["(A > 1)"]
    assert arguments("const int A = 3;", "k<A, sizeof(A) > ") == ["3, sizeof(3)"] and arguments(
        "", "k<(1 > 0), B<2>, 3>"
    ) == ["(1 > 0), B<2>, 3"]
    assert [la.arguments for la in Text("const int A = 3; void run() { k<A><<<1, 1>>>(); }").launches()] == ["A"]
