"""Which ops of torch belong to which class of rounding errors, by the name in their schema."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map


class Mode(TorchDispatchMode):
    """What sees every op of a run."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler on the first op, and goes through it on each


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


RECURRENCES = words("gru lstm rnn_tanh rnn_relu")  # of torch, layers and steps in one call

# nothing is rounded: the result is made of the operands' values, or is no float
EXACT = words("""
view _unsafe_view reshape _reshape_alias as_strided expand permute transpose t squeeze unsqueeze select slice split
split_with_sizes unbind diagonal detach alias unfold movedim swapaxes chunk narrow flatten unflatten view_as clone copy
copy_ contiguous cat stack hstack index index_select gather take where masked_fill masked_fill_ masked_select
masked_scatter select_scatter slice_scatter diagonal_scatter scatter scatter_ index_copy index_copy_ index_fill
index_fill_ constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
replication_pad3d flip roll rot90 repeat repeat_interleave tile max min amax amin aminmax maximum minimum fmax fmin
argmax argmin sort topk kthvalue median nanmedian mode cummax cummin _cummax_helper _cummin_helper relu relu_ clamp
clamp_ clamp_min clamp_min_ clamp_max clamp_max_ hardtanh hardtanh_ threshold threshold_ abs abs_ neg neg_ sign sign_
sgn signbit floor floor_ ceil ceil_ round round_ trunc trunc_ frac eq ne lt le gt ge logical_and logical_or logical_not
logical_not_ logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor isnan isinf isfinite isposinf isneginf any all
max_pool2d_with_indices max_pool3d_with_indices max_pool1d adaptive_max_pool2d adaptive_max_pool3d max_unpool2d
max_unpool3d embedding one_hot arange zeros ones full empty empty_like zeros_like ones_like full_like new_zeros new_ones
new_full new_empty new_empty_strided empty_strided scalar_tensor lift_fresh lift_fresh_copy tril triu tril_ triu_ eye
zero_ zero _to_copy to nonzero bucketize searchsorted nan_to_num nan_to_num_ copysign _local_scalar_dense item
upsample_nearest1d upsample_nearest2d upsample_nearest3d pixel_shuffle pixel_unshuffle channel_shuffle im2col
is_same_size real imag set_ resize_ sym_size diag_embed heaviside isin _assert_async _assert_scalar
_assert_tensor_metadata _linalg_check_errors tril_indices triu_indices linspace equal resize_as_ _chunk_cat
_unsafe_masked_index unsafe_split unsafe_split_with_sizes _unsafe_index block_diag _upsample_nearest_exact1d
_upsample_nearest_exact2d _upsample_nearest_exact3d squeeze_ unsqueeze_ transpose_ t_ fill fill_ complex
view_as_complex conj_physical resolve_conj resolve_neg
""")
# indices of elements that are chosen by their values
PICKING_SEVERAL = words("sort topk")
PICKING_ANY = words("sort topk kthvalue median nanmedian mode")  # of equal elements, any
# whose results depend on where NaN stands in an order: before all numbers, or after them
RANKING = words("sort topk kthvalue mode")
SEARCHES = words("searchsorted bucketize")
PICKING = PICKING_SEVERAL | PICKING_ANY | words("argmax argmin max min")
# functions whose kernels err by several units in the last place
SPECIAL = words("""
exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh erf erfc erfinv
sigmoid pow rsqrt lgamma digamma i0 sinc logaddexp logaddexp2 softplus log_sigmoid_forward xlogy hypot polygamma
special_xlog1py exp_ tanh_ sigmoid_ log_ pow_ rsqrt_ special_erfcx special_ndtr special_log_ndtr special_entr
special_i0e special_i1 special_i1e special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1
special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_spherical_bessel_j0 special_airy_ai
special_zeta special_ndtri
""")
# usual forms of these cancel against 1, as exp(x) - 1 and 2 sigmoid(2x) - 1 do, or they have zeros between numbers:
# an absolute error of a unit of 1
UNIT = words("""
tanh tanh_ expm1 log1p softplus elu elu_ log_sigmoid_forward erfc special_ndtr lgamma digamma polygamma
special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_airy_ai
""")
DOTS = words("mm bmm addmm baddbmm mv addmv dot vdot convolution _convolution addr addbmm")
WITH_ADDEND = words("addmm baddbmm addmv addr addbmm")  # the first operand is added to the product
SUMS = words("sum mean cumsum")
LINEAR = DOTS | SUMS | words("avg_pool1d avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d")
LINEAR_ALGEBRA = words("""
_linalg_solve_ex linalg_inv_ex _linalg_eigh _linalg_det _linalg_slogdet linalg_lu_factor_ex linalg_qr linalg_cholesky_ex
linalg_ldl_solve linalg_solve_triangular triangular_solve cholesky_solve linalg_lu_solve _linalg_svd linalg_lstsq
linalg_householder_product linalg_matrix_exp geqrf ormqr linalg_lu linalg_ldl_factor_ex cholesky cholesky_inverse
linalg_pinv
""")
SPECTRAL = words("_linalg_eigh _linalg_svd")
ORTHOGONAL = words("linalg_qr geqrf linalg_lstsq _linalg_svd linalg_pinv")
FOURIER = words("_fft_r2c _fft_c2r _fft_c2c")
# that have a rule for complex numbers, beside views, what rounds nothing, and what torch calls pointwise
OF_COMPLEX = FOURIER | SUMS | words("polar mm bmm addmm baddbmm mv addmv dot vdot prod cumprod linalg_vector_norm")
# not called pointwise by torch, and right by the rule for arithmetic
KNOWN = words("""
polar lerp hardswish hardswish_ hardsigmoid leaky_relu leaky_relu_ elu elu_
celu gelu silu silu_ mish addcmul addcdiv softshrink hardshrink add_ sub_ mul_ div_ sqrt_ rsub _prelu_kernel
""")
# run as torch's own decomposition into smaller ops
COMPOSITE = words("""
native_layer_norm native_group_norm _softmax _log_softmax logsumexp silu silu_ mish hardswish softplus nll_loss_forward
nll_loss2d_forward mse_loss huber_loss smooth_l1_loss l1_loss binary_cross_entropy binary_cross_entropy_with_logits
_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_attention_math addcmul addcdiv glu celu selu
log_sigmoid_forward soft_margin_loss multi_margin_loss dist _euclidean_dist renorm logit native_layer_norm_backward
native_group_norm_backward _softmax_backward_data _log_softmax_backward_data gelu_backward silu_backward
sigmoid_backward tanh_backward threshold_backward native_batch_norm_backward nll_loss_backward mse_loss_backward
_fused_rms_norm rms_norm upsample_bilinear2d upsample_linear1d grid_sampler_2d upsample_bicubic2d
upsample_trilinear3d _weight_norm_interface affine_grid_generator lerp trace baddbmm addmv addr addbmm hardsigmoid
std_mean cross linalg_cross
""")


@cache
def name_of(func: Any) -> str:
    """The name of an op without its namespace and overload: "add" of aten::add.Tensor; of a view that is copied, the
    view's."""
    name = func._schema.name.split("::")[-1]
    return name.removesuffix("_copy") if name.removesuffix("_copy") in EXACT else name


def is_float(value: Any) -> bool:
    """Whether `value` is a tensor of floating-point numbers."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def is_number(value: Any) -> bool:
    """Whether `value` is a tensor of floating-point or complex numbers."""
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def number_leaves(tree: Any) -> list[torch.Tensor]:
    """The tensors of floating-point or complex numbers in nested arguments."""
    return [leaf for leaf in tree_leaves(tree) if is_number(leaf)]


def float_leaves(tree: Any) -> list[torch.Tensor]:
    """The tensors of floating-point numbers in nested arguments."""
    return [leaf for leaf in tree_leaves(tree) if is_float(leaf)]


def mapped(change: Callable[[torch.Tensor], Any], tree: Any) -> Any:
    """Nested arguments or results of an op with its tensors of floating-point or complex numbers changed."""
    kind = type(tree)
    if kind is torch.Tensor:
        return change(tree) if tree.is_floating_point() or tree.is_complex() else tree
    if kind is tuple or kind is list:
        return kind([mapped(change, each) for each in tree])
    if kind is dict:
        return {key: mapped(change, each) for key, each in tree.items()}
    if isinstance(tree, torch.Tensor | tuple | list | Mapping):
        return tree_map(lambda t: change(t) if is_number(t) else t, tree)
    return tree


def tensors_of(result: Any) -> list[torch.Tensor]:
    """The tensors that a function returned, in order."""
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The bytes of its elements, in their order."""
    if not tensor.numel():
        return b""  # whose strides may be any, and then `view` takes it for no array of bytes
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def argument(func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], default: Any = None) -> Any:
    """An argument of an op by its name in the schema, or `default`."""
    if name in kwargs:
        return kwargs[name]
    for position, declared in enumerate(func._schema.arguments):
        if declared.name == name:
            if position < len(args):
                return args[position]
            return declared.default_value if declared.has_default_value() else default
    return default


@cache
def decompositions() -> dict[Any, Any]:
    """torch's decompositions of the ops that are run as one."""
    return {
        func: made
        for func, made in decomposition_table.items()
        if isinstance(func, torch._ops.OpOverload) and name_of(func) in COMPOSITE
    }


@cache
def out_of_place(func: Any) -> Any:
    """What an op that writes its first operand gives anew: `lerp` of `lerp_`; None where there is no such op."""
    packet = getattr(torch.ops.aten, name_of(func).removesuffix("_"), None)
    if not func._schema.is_mutable or packet is None or func._overloadname not in packet.overloads():
        return None
    found = getattr(packet, func._overloadname)
    return None if found._schema.is_mutable else found


@cache
def _is_composite(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def in_parts(mode: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of an op that consists of smaller ones, each of which `mode` sees; NotImplemented for another op."""
    made = NotImplemented
    if _is_composite(func):
        with mode:
            made = func.decompose(*args, **kwargs)
    if made is NotImplemented and func in decompositions():
        with mode:
            made = decompositions()[func](*args, **kwargs)
    return made
