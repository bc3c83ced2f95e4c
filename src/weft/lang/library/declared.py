"""The attributes of the operators that Weft ships: an application may have these and no others."""

from __future__ import annotations

from weft.lang.attributes import Kind
from weft.lang.operator import OPERATORS
from weft.values import FrozenMap, freeze

KINDS: dict[Kind, str] = {
    "int": """
        dimension k feature_index blocks all_gather_dim scatter_dimension split_dimension
        concat_dimension split_count index_vector_dim iota_dimension feature_group_count
        batch_group_count input_batch_dimension input_feature_dimension
        kernel_input_feature_dimension kernel_output_feature_dimension output_batch_dimension
        output_feature_dimension exponent_bits mantissa_bits group_id
    """,
    "float": "epsilon eps scale low high error",
    "bool": """
        keep lower left_side unit_diagonal reverse exclusive causal exact is_state
        count_include_pad enters is_stable
    """,
    "str": """
        equation fft_type comparison_direction compare_type monoid region name dtype rng_algorithm
    """,
    "ints": """
        dimensions fft_length result_shape result_shapes permutation slice_sizes
        broadcast_dimensions start_indices limit_indices strides edge_padding_low
        edge_padding_high interior_padding window_dimensions window_strides base_dilations
        window_dilations padding lhs_dilation rhs_dilation window
        lhs_batching_dimensions rhs_batching_dimensions lhs_contracting_dimensions
        rhs_contracting_dimensions input_spatial_dimensions kernel_spatial_dimensions
        output_spatial_dimensions collapsed_slice_dims operand_batching_dims
        start_indices_batching_dims start_index_map offset_dims update_window_dims
        inserted_window_dims input_batching_dims scatter_indices_batching_dims
        scattered_dims_to_operand_dims scatter_dims_to_operand_dims
    """,
    "any": """
        value coefficients result_dtypes in_shardings out_shardings manual_axes allowed_direction
        transpose_a window_reversal
    """,
}
"""Attributes by the values that they take; one name means the same in all operators."""

_NUMBERING = """
    input_batch_dimension input_feature_dimension input_spatial_dimensions
    kernel_input_feature_dimension kernel_output_feature_dimension kernel_spatial_dimensions
    output_batch_dimension output_feature_dimension output_spatial_dimensions
"""

_MONOIDS = ("sum", "mean", "prod", "max", "min", "all", "any", "logsumexp")

DECLARED = {
    "dot_general": """
        lhs_batching_dimensions rhs_batching_dimensions lhs_contracting_dimensions
        rhs_contracting_dimensions
    """,
    "einsum": "equation",
    "cholesky": "lower",
    "triangular_solve": "left_side lower unit_diagonal transpose_a",
    "fft": "fft_type fft_length result_shape",
    "sort": "dimension comparison_direction is_stable",
    "topk": "k",
    "cumsum": "dimension reverse exclusive",
    "batch_norm_inference": "epsilon feature_index",
    "rng_bit_generator": "result_shape rng_algorithm",
    "softmax": "dimension",
    "log_softmax": "dimension",
    "layer_norm": "eps",
    "rms_norm": "eps",
    "attention": "scale causal",
    "reduce_blocks": "dimension blocks monoid",
    "attention_blocks": "dimension blocks scale causal",
    "compare": "comparison_direction compare_type",
    "reduce_precision": "exponent_bits mantissa_bits",
    "gelu": "exact",
    "polynomial": "coefficients low high name error",
    "all_gather": "all_gather_dim result_shape",
    "reduce_scatter": "scatter_dimension result_shape",
    "all_to_all": "split_dimension concat_dimension split_count result_shape",
    "gather": """
        slice_sizes collapsed_slice_dims operand_batching_dims start_indices_batching_dims
        start_index_map index_vector_dim offset_dims
    """,
    "scatter": """
        update_window_dims inserted_window_dims input_batching_dims scatter_indices_batching_dims
        scattered_dims_to_operand_dims scatter_dims_to_operand_dims index_vector_dim monoid region
    """,
    "reduce": "dimensions monoid region",
    "reshape": "result_shape",
    "transpose": "permutation",
    "dynamic_slice": "slice_sizes",
    "broadcast_in_dim": "broadcast_dimensions result_shape",
    "reverse": "dimensions",
    "slice": "start_indices limit_indices strides",
    "pad": "edge_padding_low edge_padding_high interior_padding",
    "concatenate": "dimension",
    "constant": "value result_shape",
    "iota": "iota_dimension result_shape",
    "bitcast_convert": "result_shape",
    "reduce_window": """
        window_dimensions window_strides base_dilations window_dilations padding monoid region
    """,
    "select_and_scatter": """
        window_dimensions window_strides padding monoid region comparison_direction
    """,
    "convolution": f"""
        {_NUMBERING} window_strides padding lhs_dilation rhs_dilation window_reversal
        feature_group_count batch_group_count
    """,
    "avg_pool": "window strides padding count_include_pad",
    "max_pool": "window strides padding",
    "propagation_barrier": "allowed_direction",
    "sharding_group": "group_id",
    "while": "result_shapes result_dtypes enters",
    "case": "result_shapes result_dtypes enters",
    "if": "result_shapes result_dtypes enters",
    "optimization_barrier": "result_shapes result_dtypes enters",
    "data_flow_edge": "enters",
    "manual_computation": """
        in_shardings out_shardings manual_axes result_shapes result_dtypes enters
    """,
    **dict.fromkeys((f"{each}_dim" for each in _MONOIDS), "dimensions keep"),
}
"""For each operator the names of its attributes; all have `dtype`, that of the result."""

_KIND_OF = {name: kind for kind, names in KINDS.items() for name in names.split()}

for _name, _operator in OPERATORS.items():
    _names = DECLARED.get(_name, "result_shapes is_state" * _name.startswith("custom_call @"))
    freeze(
        _operator,
        attributes=FrozenMap((each, _KIND_OF[each]) for each in f"{_names} dtype".split()),
    )
