"""What `make test` leaves to `make thorough`, which `.ci/run` runs: the costly ones of tests that show much the same.

Each entry is a test, or one of its cases; `*` stands for any text. What is left of the same file, or the tests of the
neighbours, still notices an error of the usual kind, in a fraction of the time.
"""

from __future__ import annotations

THOROUGH: dict[str, tuple[str, ...]] = {
    # The site is built once; `make site` does it too.
    "browser/test_site.py": ("*",),
    # One case of each kind is left.
    "compiler/backends/test_copies.py": ("test_what_was_made_faster_is_still_right[XLA-*",),
    "compiler/backends/test_kernel.py": tuple(
        f"test_every_number_of_rows_and_size_of_a_matrix[{rows}-*" for rows in (2, 4, 5, 8)
    ),
    "compiler/backends/test_packed.py": ("test_other_instructions[SSE]",),
    # Everything else in `make test` has the simple code of XLA.
    "compiler/backends/test_whole_xla.py": ("test_a_sample_runs_with_the_code_that_users_get",),
    "compiler/backends/test_together.py": (
        *(f"test_ranges[{kind}-*" for kind in ("from the half", "grows from none", "shrinks to none", "slides ahead")),
        *(f"test_ranges[*-{how}]" for how in ("min", "all", "mean", "prod")),
        "test_the_plan_counts_them[True-slides]",
        "test_the_plan_counts_them[True-window]",
        "test_what_is_not_read_counts_for_nothing[*-torch]",
    ),
    "compiler/backends/test_grouped.py": ("test_lanes[32-*", "test_lanes[128-*", "test_every_way[128-*"),
    "compiler/gradients/test_cases.py": ("test_compiled[jax]",),
    "compiler/gradients/test_strides.py": ("test_compiled[jax]",),
    "compiler/loops/test_private.py": ("test_equal_to_the_oracle[by_cases]",),
    "language/test_steps.py": (
        "test_heat_on_a_torus_with_gradient[torch-*",
        "test_heat_on_a_torus_with_gradient[numpy-2]",
        "test_heat_on_a_torus_with_gradient[jax-2]",
        "test_heat_on_a_torus_with_gradient[jax-8]",
    ),
    "compiler/loops/test_rows.py": (
        "test_rows_run_one_by_one_in_python[*-torch]",
        "test_values_and_gradients_are_those_of_the_oracle[backwards]",
        "test_values_and_gradients_are_those_of_the_oracle[causal]",
        "test_values_and_gradients_are_those_of_the_oracle[mlp]",
        "test_values_and_gradients_are_those_of_the_oracle[normalised]",
        "test_values_and_gradients_are_those_of_the_oracle[running]",
    ),
    "compiler/passes/test_accumulate.py": (
        "test_gradients_of_parameters_are_added_up_on_the_way_back[gate]",
        "test_natural_policy_gradients_store_what_their_returns_look_ahead[3-1.02]",
    ),
    "compiler/passes/test_centred.py": (
        "test_equal_to_the_oracle[centre of a row]",
        "test_equal_to_the_oracle[of the future]",
        "test_equal_to_the_oracle[twice the reader]",
        "test_the_memory_is_linear[centre of a row]",
        "test_the_memory_is_linear[covariance]",
        "test_the_memory_is_linear[of the future]",
        "test_the_memory_is_linear[twice the reader]",
        "test_the_memory_is_linear[weighted]",
    ),
    "compiler/passes/test_linear.py": ("test_windows_are_those_of_numpy[slides ahead]",),
    "compiler/passes/test_pairs.py": (
        "test_gradients_by_recomputed_elements[by_sums]",
        "test_gradients_by_recomputed_elements[future]",
        "test_gradients_by_recomputed_elements[gates]",
        "test_gradients_by_recomputed_elements[heads]",
    ),
    "compiler/passes/test_predicate.py": ("test_sweeps_are_equal_to_the_oracle[False]",),
    "compiler/passes/test_ranges.py": (
        "test_equal_to_the_oracle[after-jax]",
        "test_gradients_by_what_is_reduced[logsumexp]",
        "test_gradients_by_what_is_reduced[max of something]",
        "test_gradients_by_what_is_reduced[scaled by the reader]",
        "test_the_gradient_of_a_product_is_a_recurrence_the_other_way[after]",
        "test_the_gradient_of_a_product_is_a_recurrence_the_other_way[before]",
        "test_the_gradient_of_a_product_is_a_recurrence_the_other_way[but the last]",
    ),
    "compiler/passes/test_skew.py": (
        "test_diagonals_give_the_same[by_pieces]",
        "test_diagonals_give_the_same[solid]",
    ),
    "compiler/passes/test_split.py": (
        "test_prompts_of_different_lengths_are_cut_at_the_shortest[jax]",
        "test_the_recurrence_of_a_gradient_is_cut[jax]",
        "test_what_both_parts_read_at_their_own_steps_is_cut_too[False-jax]",
    ),
    "compiler/passes/test_terms.py": (
        "test_equal_to_the_oracle[jax-shrinks]",
        "test_gradients[entropy-grows]",
        "test_gradients[pooled scores-grows]",
        "test_gradients[pooled-grows]",
    ),
    "compiler/passes/test_windows.py": ("test_equal_to_the_oracle[20]",),
    "compiler/schedule/test_skewed.py": (
        "test_values_and_gradients[shape0-skewed-jax]",
        "test_values_and_gradients[shape2-skewed-jax]",
    ),
    "compiler/schedule/test_tiles.py": ("test_results_are_those_of_the_oracle[trained]",),
    "compiler/schedule/test_views.py": ("test_rollouts_of_images_are_stored_once[a2c-1.2]",),
    # `make fuzz` draws from all of these, as long as it is let.
    "fuzz/test_passes.py": (
        "test_any_subset_of_the_passes[float]",
        "test_any_subset_of_the_passes[int]",
        "test_gradients_over_rows_with_lengths_of_their_own",
    ),
    "compiler/gradients/test_random.py": ("test_random_programs",),
    "fuzz/test_programs.py": (
        "test_random_programs[int]",
        "test_every_feature_occurs[*]",
        "test_special_programs[aligned-*]",
        "test_special_programs[running-*]",
        "test_special_programs[swept-*]",
    ),
    "language/functions/test_updates.py": ("test_everywhere_over_a_dynamic_axis",),
    "language/functions/test_everywhere.py": (
        "test_draws_are_the_same_everywhere",
        "test_gradients_of_functions_of_order",
    ),
    "llm/test_beams.py": ("test_texts_and_scores_are_those_of_transformers[mistral, window 3-options1]",),
    "llm/test_conversation.py": (
        "test_a_step_is_not_begun_before_the_one_before_is_known[options2-20]",
        "test_a_step_is_not_begun_before_the_one_before_is_known[options3-20]",
    ),
    "llm/test_generation.py": (
        "test_another_number_of_prompts_needs_no_other_program[greedy]",
        "test_keys_and_values_in_half_the_bytes",
    ),
    "llm/test_speculative.py": (
        "test_end_tokens_at_every_place_of_a_round",
        "test_windows_and_families[mistral-sizes0]",
    ),
    "nn/test_training.py": ("test_a_model_of_text[jax]",),
    "llm/test_quantised.py": (
        "test_a_file_stays_quantised_and_gives_what_its_floats_give[Q4_0-numpy]",
        "test_a_file_stays_quantised_and_gives_what_its_floats_give[Q4_1-numpy]",
        "test_perplexity_is_that_of_the_dequantised_weights[Q4_0]",
        "test_perplexity_is_that_of_the_dequantised_weights[Q8_0]",
    ),
    "llm/test_slots.py": (
        "test_prompts_of_all_lengths_and_shared_beginnings[gemma2-numpy]",
        "test_prompts_of_all_lengths_and_shared_beginnings[mistral-numpy]",
        "test_prompts_of_all_lengths_and_shared_beginnings[phi3-numpy]",
        "test_prompts_of_all_lengths_and_shared_beginnings[qwen3_moe-numpy]",
        "test_samples_of_a_prompt_are_those_of_generate[30-jax]",
        "test_texts_of_any_options_share_the_slots[numpy]",
    ),
    # On torch the loops are those of NumPy.
    "programs/test_recurrences.py": (
        "test_values_and_gradients[*-torch]",
        "test_values_and_gradients[heap_of_steps-jax]",
        "test_values_and_gradients[needleman_wunsch-jax]",
        "test_values_and_gradients[outside_of_spans-jax]",
        "test_values_and_gradients[power_iteration-jax]",
    ),
    "rl/test_grpo.py": ("test_training_goes_on_from_a_file",),
    "rl/test_examples.py": ("test_ppo_with_memories_runs",),
    "rl/test_gym.py": (
        "test_agents_act_in_every_space[4]",
        "test_agents_act_in_every_space[5]",
    ),
    "rl/test_off_policy.py": (
        "test_a_few_iterations[c51]",
        "test_a_few_iterations[prioritised]",
        "test_a_few_iterations[qr]",
        "test_a_few_iterations[sac discrete]",
    ),
    "rl/test_other_environments.py": ("test_breakout_like_gymnax",),
    "rl/test_policies.py": (
        "test_a_transformer_remembers_the_iteration_before_in_place",
        "test_the_first_update_sees_what_acting_saw[transformer]",
        "test_observations_of_every_space[*-False]",
    ),
    "rl/test_train.py": (
        "test_several_seeds_are_what_each_gives_alone",
        "test_several_values_of_a_setting_are_what_each_gives_alone",
    ),
    # Processes of their own, each of which imports JAX and compiles.
    "runtime/test_extending.py": (
        "test_a_run_that_has_ended_goes_further[18-jax]",
        "test_a_run_that_has_ended_goes_further[20-jax]",
    ),
    "runtime/test_piecewise.py": ("test_what_is_resident_does_not_grow_with_the_data[file]",),
    "runtime/test_reports.py": ("test_compiled_programs_survive_the_process",),
    "runtime/test_same_program.py": ("test_the_order_of_sets_does_not_matter",),
    "runtime/test_spilling.py": ("test_ppo_within_a_budget",),
    "test_examples.py": (
        "test_an_example_runs[lora]",
        "test_an_example_runs[ragged]",
    ),
    "test_memory_plan.py": (
        "test_a_process_takes_what_is_planned",
        "test_numpy_allocates_what_is_planned[decode]",
    ),
}
"""By file below `tests`."""


def is_thorough(file: str, name: str) -> bool:
    """Whether `make test` leaves a test out.

    >>> is_thorough("programs/test_recurrences.py", "test_values_and_gradients[fibonacci-torch]")
    True
    >>> is_thorough("programs/test_recurrences.py", "test_values_and_gradients[fibonacci-numpy]")
    False
    """
    for entry in THOROUGH.get(file, ()):
        start, star, end = entry.partition("*")
        if name == entry or (star and name.startswith(start) and name.endswith(end)):
            return True
    return False
