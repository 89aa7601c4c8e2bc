"""What the quick lane runs on eight devices, all in one process: a case of each kind."""

from benchmarks import scaling
from tests.devices.llm_cases import case_weights_by_head
from tests.devices.mesh_cases import (
    case_axes_inside,
    case_check_nan,
    case_checkpoints,
    case_decode_by_head,
    case_explain,
    case_fsdp,
    case_maxima,
    case_memory_is_per_device,
    case_optimiser_of_the_library,
    case_outputs_stay_spread,
    case_probe,
    case_refusals,
    case_ring_attention,
    case_seeds,
    case_stencil_over_time,
    case_streams,
    case_tensor_parallel_attention,
    case_tensor_parallel_mlp,
    case_turned,
)
from tests.devices.ordinary_cases import (
    case_around_the_edges,
    case_fourier,
    case_updates_that_do_not_divide,
    case_weights_in_parts,
)
from tests.devices.random_cases import case_a_few_spread_programs
from tests.devices.rl_cases import case_ppo
from tests.devices.window_cases import case_a_few_windows


def case_scaling() -> list[str]:
    """Bytes of collectives on paper and as compiled, for the programs that compile fast."""
    few = ("decoding, by head", "perceptron, tensor parallel", "stencil, halo exchange", "training, fully sharded")
    found = scaling.compared([row for row in scaling.ROWS if row.name in few], most=8)
    return [row["counted, bytes"] for row in found]


CASES = [
    *(case_optimiser_of_the_library, case_fsdp, case_tensor_parallel_mlp, case_tensor_parallel_attention),
    *(case_decode_by_head, case_ring_attention, case_stencil_over_time, case_turned, case_maxima),
    *(case_around_the_edges, case_fourier, case_updates_that_do_not_divide, case_weights_in_parts, case_a_few_windows),
    *(case_axes_inside, case_streams, case_checkpoints, case_probe, case_check_nan, case_memory_is_per_device),
    case_outputs_stay_spread,
    *(
        case_explain,
        case_refusals,
        case_seeds,
        case_ppo,
        case_weights_by_head,
        case_a_few_spread_programs,
    ),
    case_scaling,
]
