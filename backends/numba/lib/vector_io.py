"""What Numba has no name for: 16-byte accesses, and elements packed in 32-bit words.

`words` is a local array of uint32 in which 16 bytes take four places from `at` on. It stays in registers where all its
indices are constants after unrolling. A `like` argument is an array that only gives the type of the elements.
"""

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_F16, _F32 = ir.HalfType(), ir.FloatType()
_WORDS = ir.VectorType(_I32, 4)


@intrinsic
def lanes_of(typingctx, like):
    """How many elements 16 bytes hold, a constant: 4 of float32, else 8."""

    def lower(context, builder, signature, arguments):
        return _I64(_lanes(like))

    return types.int64(like), lower


@intrinsic
def load16(typingctx, array, index, words, at):
    """One 16-byte load of the elements from array[index] on into `words`; zeros where the index is beyond the last
    axis.

    `index` is an integer or a tuple of them. The last axis has stride 1, and the address is a multiple of 16.
    """

    def lower(context, builder, signature, arguments):
        address, inside = _place(context, builder, array, arguments[0], index, arguments[1])
        places = _words(context, builder, words, arguments[2], at, arguments[3])
        for place in places:
            builder.store(_I32(0), place)
        with builder.if_then(inside):
            loaded = builder.load(address, align=16)
            for i, place in enumerate(places):
                builder.store(builder.extract_element(loaded, _I32(i)), place)

    return types.void(array, index, words, at), lower


@intrinsic
def store16(typingctx, words, at, array, index):
    """One 16-byte store of `words` to array[index] and on; none where the index is beyond the last axis. As load16."""

    def lower(context, builder, signature, arguments):
        address, inside = _place(context, builder, array, arguments[2], index, arguments[3])
        with builder.if_then(inside):
            places = _words(context, builder, words, arguments[0], at, arguments[1])
            builder.store(_vector(builder, [builder.load(place) for place in places]), address, align=16)

    return types.void(words, at, array, index), lower


@intrinsic
def load_vector(typingctx, array, index, words, at, wide):
    """As load16 where `wide`; else an element at a time, of any stride and alignment, zeros beyond the last axis."""

    def lower(context, builder, signature, arguments):
        address, inside = _place(context, builder, array, arguments[0], index, arguments[1])
        places = _words(context, builder, words, arguments[2], at, arguments[3])
        for place in places:
            builder.store(_I32(0), place)
        with builder.if_else(builder.trunc(arguments[4], ir.IntType(1))) as (then, otherwise):
            with then, builder.if_then(inside):
                loaded = builder.load(address, align=16)
                for i, place in enumerate(places):
                    builder.store(builder.extract_element(loaded, _I32(i)), place)
            with otherwise:
                bits = []
                for address, inside in _elements(context, builder, array, arguments[0], index, arguments[1]):
                    before = builder.block
                    with builder.if_then(inside):
                        loaded, within = builder.load(address), builder.block
                    bits.append(builder.phi(loaded.type))
                    bits[-1].add_incoming(loaded.type(0), before)
                    bits[-1].add_incoming(loaded, within)
                for i, place in enumerate(places):
                    builder.store(bits[i] if len(bits) == 4 else _joined(builder, *bits[2 * i : 2 * i + 2]), place)

    return types.void(array, index, words, at, wide), lower


@intrinsic
def store_vector(typingctx, words, at, array, index, wide):
    """As store16 where `wide`; else an element at a time, of any stride and alignment, none beyond the last axis."""

    def lower(context, builder, signature, arguments):
        address, inside = _place(context, builder, array, arguments[2], index, arguments[3])
        loaded = [builder.load(place) for place in _words(context, builder, words, arguments[0], at, arguments[1])]
        with builder.if_else(builder.trunc(arguments[4], ir.IntType(1))) as (then, otherwise):
            with then, builder.if_then(inside):
                builder.store(_vector(builder, loaded), address, align=16)
            with otherwise:
                elements = _elements(context, builder, array, arguments[2], index, arguments[3])
                for i, (address, inside) in enumerate(elements):
                    if len(elements) == 4:
                        bits = loaded[i]
                    else:
                        bits = builder.trunc(builder.lshr(loaded[i // 2], _I32(i % 2 * 16)), _I16)
                    with builder.if_then(inside):
                        builder.store(bits, address)

    return types.void(words, at, array, index, wide), lower


@intrinsic
def unpacked(typingctx, words, i, like):
    """The i-th element in `words`, as float32."""

    def lower(context, builder, signature, arguments):
        data = context.make_array(words)(context, builder, arguments[0]).data
        i64 = context.cast(builder, arguments[1], i, types.int64)
        if like.dtype == types.float32:
            return builder.bitcast(builder.load(builder.gep(data, [i64])), _F32)
        word = builder.load(builder.gep(data, [builder.lshr(i64, _I64(1))]))
        odd = builder.trunc(builder.and_(i64, _I64(1)), _I32)
        bits = builder.lshr(word, builder.shl(odd, _I32(4)))
        if like.dtype == types.bfloat16:
            return builder.bitcast(builder.shl(bits, _I32(16)), _F32)
        return builder.fpext(builder.bitcast(builder.trunc(bits, _I16), _F16), _F32)

    return types.float32(words, i, like), lower


@intrinsic
def opaque(typingctx, word):
    """A word as a value that the compiler has not seen before: what was made of it has to be made again, and need not
    be kept."""

    def lower(context, builder, signature, arguments):
        kind = ir.FunctionType(_I32, [_I32])
        move = ir.InlineAsm(kind, "mov.b32 $0, $1;", "=r,r", side_effect=True)
        return builder.call(move, arguments)

    return types.uint32(types.uint32), lower


@intrinsic
def pack(typingctx, values, words, at, like):
    """Round the first 16 bytes' worth of a local array of float32 to nearest even, into `words`."""

    def lower(context, builder, signature, arguments):
        data = context.make_array(values)(context, builder, arguments[0]).data
        numbers = [builder.load(builder.gep(data, [_I64(i)])) for i in range(_lanes(like))]
        for i, place in enumerate(_words(context, builder, words, arguments[1], at, arguments[2])):
            if like.dtype == types.float32:
                word = builder.bitcast(numbers[i], _I32)
            else:
                word = _pair(builder, like.dtype, *numbers[2 * i : 2 * i + 2])
            builder.store(word, place)

    return types.void(values, words, at, like), lower


def _lanes(kind):
    return 4 if kind.dtype == types.float32 else 8


def _parts(context, builder, kind, index_kind, index):
    """The integers of an index, in 64 bits."""
    tupled = isinstance(index_kind, types.BaseTuple)
    kinds = list(index_kind) if tupled else [index_kind]
    parts = cgutils.unpack_tuple(builder, index) if tupled else [index]
    if len(parts) != kind.ndim:
        raise TypeError(f"{len(parts)} indices for {kind.ndim} axes")
    return [context.cast(builder, part, part_kind, types.int64) for part, part_kind in zip(parts, kinds, strict=True)]


def _line(context, builder, kind, array, parts):
    """The address where the last axis begins, as bytes, and its extent and stride.

    Bytes from the array's start, not an integer made an address: so NVVM sees what memory this is.
    """
    array = context.make_array(kind)(context, builder, array)
    strides = cgutils.unpack_tuple(builder, array.strides)
    start = builder.bitcast(array.data, _I8.as_pointer())
    for part, stride in zip(parts[:-1], strides[:-1], strict=True):
        start = builder.gep(start, [builder.mul(part, stride)])
    return start, cgutils.unpack_tuple(builder, array.shape)[-1], strides[-1]


def _place(context, builder, kind, array, index_kind, index):
    """The address of the 16 bytes from array[index] on, and whether the index lies within the last axis."""
    parts = _parts(context, builder, kind, index_kind, index)
    start, extent, _ = _line(context, builder, kind, array, parts)
    address = builder.gep(start, [builder.mul(parts[-1], _I64(16 // _lanes(kind)))])
    return builder.bitcast(address, _WORDS.as_pointer()), builder.icmp_unsigned("<", parts[-1], extent)


def _elements(context, builder, kind, array, index_kind, index):
    """The addresses of the elements from array[index] on, 16 bytes in all, and whether each lies within the last
    axis."""
    parts = _parts(context, builder, kind, index_kind, index)
    start, extent, stride = _line(context, builder, kind, array, parts)
    bits = _I32 if _lanes(kind) == 4 else _I16
    out = []
    for i in range(_lanes(kind)):
        at = builder.add(parts[-1], _I64(i))
        address = builder.bitcast(builder.gep(start, [builder.mul(at, stride)]), bits.as_pointer())
        out.append((address, builder.icmp_unsigned("<", at, extent)))
    return out


def _words(context, builder, kind, words, at_kind, at):
    """The addresses of four words."""
    data = context.make_array(kind)(context, builder, words).data
    at = context.cast(builder, at, at_kind, types.int64)
    return [builder.gep(data, [builder.add(at, _I64(i))]) for i in range(4)]


def _pair(builder, dtype, low, high):
    """Two float32 rounded to 16 bits, in a word."""
    if dtype == types.bfloat16:
        code = ir.InlineAsm(ir.FunctionType(_I32, [_F32, _F32]), "cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f")
        return builder.call(code, [high, low])
    return _joined(builder, *(builder.bitcast(builder.fptrunc(x, _F16), _I16) for x in (low, high)))


def _joined(builder, low, high):
    """A word of two halves."""
    return builder.or_(builder.zext(low, _I32), builder.shl(builder.zext(high, _I32), _I32(16)))


def _vector(builder, words):
    vector = ir.Constant(_WORDS, ir.Undefined)
    for i, word in enumerate(words):
        vector = builder.insert_element(vector, word, _I32(i))
    return vector
