"""Wide accesses and PTX instructions that matrix products need, one a function; backends/cupy/ptx.cuh has the same in
C++.

`at` and `to` count elements from the start of a C-contiguous array. On the CPU an access is checked as a whole, and the
instructions have twins in the emulator (backends/emulator/numba/ptx.py). Numba's own simulator has
the loads and the stores in plain Python.
"""

import math

from numba import float32

from touchstone.backends import numba


def _absent(*operands):
    raise NotImplementedError("Numba's own simulator has no PTX")


if numba.simulated():

    def load1(x, at):
        return float32(x.reshape(-1)[int(at)])

    def load4(target, to, x, at):
        for j in range(4):
            target[int(to) + j] = load1(x, at + j)

    def store4(x, at, *values):
        flat = x.reshape(-1)
        for j, value in enumerate(values):
            flat[int(at) + j] = value

    store1 = store2 = store4
    fast_exp, fast_exp2 = math.exp, math.exp2

    def fast_divide(a, b):
        return a / b

    copy16 = copy_commit = copy_wait = copy_bits = ldmatrix_x4 = mma_m16n8k16 = exp2 = _absent
else:
    from llvmlite import ir
    from numba.cuda import libdevice, types
    from numba.cuda.extending import intrinsic

    # A few units in the last place, subnormals too: __expf, exp2f and __fdividef of CUDA C.
    fast_exp, fast_exp2, fast_divide = libdevice.fast_expf, libdevice.exp2f, libdevice.fast_fdividef

    _I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
    _F32, _VOID = ir.FloatType(), ir.VoidType()
    _GLOBAL, _SHARED = 1, 3  # address spaces
    _NARROW = {types.float16: "f16", types.bfloat16: "bf16"}

    def _array(kind, *dtypes):
        return isinstance(kind, types.Array) and kind.layout == "C" and (not dtypes or kind.dtype in dtypes)

    def _pointer(context, builder, kind, array, at, to, space=0):
        """The address of element `at` as a pointer to `to`."""
        data = context.make_array(kind)(context, builder, array).data
        pointer = builder.bitcast(builder.gep(data, [at]), to.as_pointer())
        return builder.addrspacecast(pointer, to.as_pointer(space)) if space else pointer

    def _asm(builder, result, operands, code, constraints, effect=False):
        kind = ir.FunctionType(result, [operand.type for operand in operands])
        return builder.call(ir.InlineAsm(kind, code, constraints, side_effect=effect), operands)

    def _tuple(context, builder, signature, struct):
        parts = [builder.extract_value(struct, i) for i in range(signature.return_type.count)]
        return context.make_tuple(builder, signature.return_type, parts)

    def _widened(builder, kind, bits):
        """The bits of a 16-bit element as float32."""
        if kind.dtype == types.bfloat16:
            return builder.bitcast(builder.shl(builder.zext(bits, _I32), _I32(16)), _F32)
        return _asm(builder, _F32, [bits], "cvt.f32.f16 $0, $1;", "=f,h")

    def _loaded(context, builder, x, array, at, count):
        """`count` neighbours by one access, each as float32."""
        part = _I32 if x.dtype == types.float32 else _I16
        pointer = _pointer(context, builder, x, array, at, ir.VectorType(part, count))
        bits = builder.load(pointer, align=count * part.width // 8)
        parts = [builder.extract_element(bits, _I32(i)) for i in range(count)]
        return [builder.bitcast(each, _F32) if part == _I32 else _widened(builder, x, each) for each in parts]

    @intrinsic
    def load1(typingctx, x, at):
        """x[at] as float32, without the question whether `at` is negative."""

        def lower(context, builder, signature, arguments):
            return _loaded(context, builder, x, *arguments, 1)[0]

        return (types.float32(x, types.intp), lower) if _array(x, types.float32, *_NARROW) else None

    @intrinsic
    def load4(typingctx, target, to, x, at):
        """target[to], ... target[to + 3] = the four elements of x from `at`, a multiple of four, by one access.

        target: a local array of float32. 16 bytes of float32, 8 of a 16-bit type.
        """

        def lower(context, builder, signature, arguments):
            start = _pointer(context, builder, target, *arguments[:2], _F32)
            for j, value in enumerate(_loaded(context, builder, x, *arguments[2:], 4)):
                builder.store(value, builder.gep(start, [_I64(j)]), align=4)

        right = _array(x, types.float32, *_NARROW) and _array(target, types.float32)
        return (types.void(target, types.intp, x, types.intp), lower) if right else None

    def _store(x, count):
        if not _array(x, types.float32, *_NARROW):
            return None

        def lower(context, builder, signature, arguments):
            array, at, *values = arguments
            if x.dtype == types.float32:
                words = [builder.bitcast(value, _I32) for value in values]
            else:
                code = f"cvt.rn.{_NARROW[x.dtype]}x2.f32 $0, $1, $2;"  # the high half comes first
                pairs = zip(values[1::2] or values, values[::2], strict=True)
                words = [_asm(builder, _I32, pair, code, "=r,f,f") for pair in pairs]
                if count == 1:
                    words = [builder.trunc(words[0], _I16)]
            whole = ir.VectorType(words[0].type, len(words))
            stored = ir.Constant(whole, ir.Undefined)
            for i, word in enumerate(words):
                stored = builder.insert_element(stored, word, _I32(i))
            size = words[0].type.width // 8 * len(words)
            builder.store(stored, _pointer(context, builder, x, array, at, whole), align=size)

        return types.void(x, types.intp, *[types.float32] * count), lower

    @intrinsic
    def store1(typingctx, x, at, first):
        """x[at] = a float32 rounded to the type of x."""
        return _store(x, 1)

    @intrinsic
    def store2(typingctx, x, at, first, second):
        """The same of two neighbours by one access, from element `at`, a multiple of two."""
        return _store(x, 2)

    @intrinsic
    def store4(typingctx, x, at, first, second, third, fourth):
        """The same of four, from a multiple of four."""
        return _store(x, 4)

    @intrinsic
    def copy16(typingctx, shared, to, x, at, size):
        """Start copying `size` bytes (0 to 16) to 16 bytes of shared memory, the rest zeros (cp.async). sm_80.

        Both places are multiples of 16 bytes; nothing is read where `size` is 0.
        """

        def lower(context, builder, signature, arguments):
            target = _pointer(context, builder, shared, arguments[0], arguments[1], _I8, _SHARED)
            source = _pointer(context, builder, x, arguments[2], arguments[3], _I8, _GLOBAL)
            code = "cp.async.cg.shared.global [$0], [$1], 16, $2;"
            _asm(builder, _VOID, [target, source, arguments[4]], code, "l,l,r,~{memory}", True)

        signature = types.void(shared, types.intp, x, types.intp, types.int32)
        return (signature, lower) if _array(shared) and _array(x) else None

    @intrinsic
    def copy_commit(typingctx):
        """Close the group of the copies that this thread has started since the last group. sm_80."""

        def lower(context, builder, signature, arguments):
            _asm(builder, _VOID, [], "cp.async.commit_group;", "~{memory}", True)

        return types.void(), lower

    @intrinsic
    def copy_wait(typingctx, pending):
        """Wait until at most `pending`, a literal, of this thread's groups are under way. sm_80."""
        if not isinstance(pending, types.IntegerLiteral):
            return None

        def lower(context, builder, signature, arguments):
            _asm(builder, _VOID, [], f"cp.async.wait_group {pending.literal_value};", "~{memory}", True)

        return types.void(pending), lower

    @intrinsic
    def copy_bits(typingctx, target, to, x, at):
        """target[to] = x[at] for elements of 16 bits, whatever their types."""

        def lower(context, builder, signature, arguments):
            bits = builder.load(_pointer(context, builder, x, *arguments[2:], _I16), align=2)
            builder.store(bits, _pointer(context, builder, target, *arguments[:2], _I16), align=2)

        return (types.void(target, types.intp, x, types.intp), lower) if _array(target) and _array(x) else None

    @intrinsic
    def ldmatrix_x4(typingctx, shared, at, transposed):
        """Four 8 x 8 matrices of 16-bit elements from shared memory, a register of two elements each. sm_75.

        Lane i says where row i % 8 of matrix i / 8 begins, at a multiple of 16 bytes. The matrices come transposed
        where `transposed` is not 0, the same for all lanes; both instructions are issued, and one has no effect:
        cheaper than a branch, over which the compiler could not move other instructions.
        """

        def lower(context, builder, signature, arguments):
            row = _pointer(context, builder, shared, arguments[0], arguments[1], _I8, _SHARED)
            load = "ldmatrix.sync.aligned.m8n8.x4{}.shared.b16 {{$0, $1, $2, $3}}, [$4];"
            code = "{{ .reg .pred t; setp.ne.s32 t, $5, 0; @t {} @!t {} }}".format(
                load.format(".trans"), load.format("")
            )
            result, constraints = ir.LiteralStructType([_I32] * 4), "=r,=r,=r,=r,l,r,~{memory}"
            return _tuple(
                context, builder, signature, _asm(builder, result, [row, arguments[2]], code, constraints, True)
            )

        signature = types.UniTuple(types.uint32, 4)(shared, types.intp, types.int32)
        return (signature, lower) if _array(shared) else None

    @intrinsic
    def mma_m16n8k16(typingctx, like, a0, a1, a2, a3, b0, b1, c0, c1, c2, c3):
        """d = a * b + c for a (16, 16), b (16, 8), c and d (16, 8) in fragments. sm_80.

        like: an array of float16 or bfloat16, the type of a and b. a: rows group and group + 8 by columns 2 * member
        and 2 * member + 8, down before right; b: rows 2 * member and 2 * member + 8 of column group; c and d: columns
        2 * member and 2 * member + 1 of row group, then of row group + 8; group = lane // 4, member = lane % 4.
        """
        if not _array(like, *_NARROW):
            return None

        def lower(context, builder, signature, arguments):
            name = _NARROW[like.dtype]
            code = (
                f"mma.sync.aligned.m16n8k16.row.col.f32.{name}.{name}.f32 "
                "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
            )
            result, constraints = ir.LiteralStructType([_F32] * 4), ",".join(["=f"] * 4 + ["r"] * 6 + ["f"] * 4)
            return _tuple(context, builder, signature, _asm(builder, result, arguments[1:], code, constraints, True))

        return types.UniTuple(types.float32, 4)(like, *[types.uint32] * 6, *[types.float32] * 4), lower

    @intrinsic
    def exp2(typingctx, x):
        """2 to the power x by the special function unit: two units in the last place, subnormals become 0."""

        def lower(context, builder, signature, arguments):
            return _asm(builder, _F32, arguments, "ex2.approx.ftz.f32 $0, $1;", "=f,f")

        return types.float32(types.float32), lower
