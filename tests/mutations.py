"""Breaks the code on purpose, one place at a time, and sees the test that must catch it fail: `make mutate`.

Each entry of MUTATIONS is (file, what stands there once, what it becomes, the test). A mutation whose test stays green
has survived: exit code 1. Mutations are applied in temporary copies; nothing here is touched.

    python tests/mutations.py [words that a mutation's line must contain]
"""

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 2
AUDIT, LEDGER, NOISE = "tests/privacy/test_audit.py", "tests/privacy/test_ledger.py", "tests/privacy/test_train.py"
STORE, REMOVAL, FIXTURES = (
    "tests/components/test_store.py",
    "tests/components/test_removal.py",
    "tests/models/test_fixtures.py",
)
IDENTITY, CLIPPING, HONESTY = (
    "tests/train/test_identity.py",
    "tests/privacy/test_clipping.py",
    "tests/experiments/test_honesty.py",
)
FORWARD, RECIPE = "tangent_jax/models/vit/forward.py", "tangent_jax/components/recipe.py"
OPTIMUM, CURVATURE, KERNEL = (f"tests/solver/test_{name}.py" for name in ("optimum", "curvature", "kernel"))
RESNET, LORA, PAPER = (
    "tests/models/test_resnet.py",
    "tests/models/test_parametrize.py",
    "tests/experiments/test_paper.py",
)
FUNCTIONS = "tests/models/test_functions.py"
SERVING, SCRIPT = "tangent_jax/components/serving.py", "tangent_jax/assets/run.py"
SERVED = "tests/components/test_serving.py"
FAMILY, WORDS, HALF = "tests/models/test_families.py", "tests/test_words.py", "tests/models/test_half.py"
MERGE, SOLVED = "tests/components/test_merge.py", "tests/experiments/test_optimum.py"
TRAIN, MECHANISM = "tangent_jax/privacy/train.py", "tangent_jax/privacy/mechanism.py"
ACCOUNT, ACCOUNTING = "tangent_jax/privacy/accounting.py", "tests/privacy/test_accounting.py"
CACHE, FEATURES = "tangent_jax/models/cache.py", "tests/models/test_features.py"
WORKERS_FILE = "tangent_jax/data/workers.py"
IDENTIFIERS, TARS, HUGGING, COLUMNS = (
    f"tangent_jax/data/{n}.py" for n in ("identifiers", "tars", "hugging_face", "columns")
)
INDEX, LAYOUTS = "tests/data/test_identifiers.py", "tests/data/test_layouts.py"
REMOVE, ERASURE = "tangent_jax/components/removal.py", "tangent_jax/components/erasure.py"
PLANS, LOG = "tests/components/test_plans.py", "tests/train/test_log.py"
PROBLEM, SOLVE, PASSES, AFFINE, FACTORS, KERNELS, POSTERIOR = (
    f"tangent_jax/solver/{name}.py"
    for name in ("problem", "optimum", "passes", "affine", "curvature", "kernel", "posterior")
)
MERGING = "tangent_jax/components/merge.py"
DEVICES, PLACEMENT, NOISES = "tests/test_devices.py", "tangent_jax/core/placement.py", "tangent_jax/privacy/noise.py"
ONE_RUN = "tests/privacy/test_one_run.py"
ATTACK, CANARIES, BOUNDS = (f"tangent_jax/privacy/{name}.py" for name in ("one_run", "canaries", "bounds"))
CLAIMS, FARM = "tests/components/test_claims.py", "tests/experiments/test_farm.py"
LOWERING, HEADS = "tests/test_lowering.py", "tests/models/test_frozen_head.py"
PEFT = "tests/components/test_peft.py"
EMBEDDING, MODERN, RULES = (
    "tangent_jax/models/vit/embedding.py",
    "tests/models/test_modern.py",
    "tests/rules/test_rules.py",
)


class Mutation(NamedTuple):
    """One break."""

    file: str
    old: str
    new: str
    test: str


M = Mutation
MUTATIONS = [
    # The private trainer
    M(TRAIN, "noisy_mean(total, mechanism.noise_multiplier,", "noisy_mean(total, mechanism.noise_multiplier / 2,",
      f"{AUDIT}::test_the_noise_of_a_run_is_as_its_ledger_says"),
    M(TRAIN, "noisy_mean(total, mechanism.noise_multiplier,", "noisy_mean(total, mechanism.noise_multiplier / 1000,",
      f"{AUDIT}::test_the_noise_of_a_run_is_as_its_ledger_says"),
    M(TRAIN, "placement.agreed(np.frombuffer(os.urandom(16), np.uint32)) if seed is None else [seed, step]", "[seed or 0, step]",
      f"{AUDIT}::test_poisson_coins_are_fresh_in_every_run_and_a_seed_repeats_them"),
    M(TRAIN, "np.uint32)) if seed is None else [seed, step]", "np.uint32)) if seed is None else [seed]",
      f"{NOISE}::test_poisson_samples_are_independent_coins_taken_whole"),
    M(TRAIN, "expected = mechanism.sampling_rate * len(batches)", "expected = len(batches)",
      f"{AUDIT}::test_a_poisson_gradient_is_on_average_the_whole_data_s"),
    M(TRAIN, "coins.random(len(batches)) < mechanism.sampling_rate", "coins.random(len(batches)) < 0.5 * mechanism.sampling_rate",
      f"{AUDIT}::test_a_poisson_gradient_is_on_average_the_whole_data_s"),
    M(TRAIN, "lambda g, r: (g + r) / mechanism.clip_norm", "lambda g, r: g / mechanism.clip_norm",
      f"{AUDIT}::test_the_penalty_is_in_every_private_step"),
    M(TRAIN, "                ledger.pay(step + 1)\n", "                pass\n",
      f"{NOISE}::test_every_step_is_paid_before_it_is_taken_and_what_is_lost_stays_paid"),
    M(TRAIN, "Spent(mechanism, 0, seed is None)", "Spent(mechanism, 0, True)",
      f"{NOISE}::test_training_learns_and_says_what_it_spent"),
    M(TRAIN, "row[\"non_finite\"] = int(total.non_finite)", "row[\"non_finite\"] = 0", f"{LEDGER}::test_examples_that_are_not_finite_are_counted_also_when_the_result_is_read_again"),
    M(TRAIN, "            check_finite(float(norms[1]), step)\n", "", f"{LEDGER}::test_a_step_that_overflows_stops_the_run_with_one_line"),
    M("tangent_jax/privacy/noise.py", "jax.random.fold_in(key, i), leaf.shape", "key, leaf.shape",
      f"{AUDIT}::test_the_noise_of_a_run_is_as_its_ledger_says"),
    M("tangent_jax/privacy/noise.py", "(leaf + jnp.asarray(scale * noise, leaf.dtype)) / count",
      "leaf / count + jnp.asarray(scale * noise, leaf.dtype) / count**2", f"{NOISE}::test_noise_is_sigma_c_over_b_in_every_leaf_and_two_thirds_or_three_halves_of_it_are_rejected"),
    M("tangent_jax/privacy/noise.py", "np.frombuffer(os.urandom(8), np.uint32)", "np.array([7, step], np.uint32)",
      f"{AUDIT}::test_the_noise_of_a_run_is_as_its_ledger_says"),
    M("tangent_jax/privacy/clipping.py", "jnp.minimum(1, clip_norm / jnp.maximum", "jnp.minimum(1, 2 * clip_norm / jnp.maximum",
      f"{CLIPPING}::test_one_example_more_or_less_moves_the_sum_by_at_most_the_sensitivity"),
    M("tangent_jax/privacy/clipping.py", "return scales * finite * present, norms", "return scales * finite, norms",
      f"{CLIPPING}::test_padding_never_contributes_and_micro_batches_sum"),
    M("tangent_jax/privacy/norms.py", "squared = jnp.sum(grams, (1, 2, 3))",
      "squared = 0.9 * jnp.sum(grams, (1, 2, 3))", f"{CLIPPING}::test_closed_form_norms_and_sums_equal_the_vmapped_ones"),
    M(MECHANISM, "delta = max(spent.mechanism.delta for", "delta = min(spent.mechanism.delta for",
      f"{NOISE}::test_disjoint_components_cost_the_dearest_and_shared_examples_pay_for_each"),
    M(MECHANISM, "PrivacyCost(max(epsilons)", "PrivacyCost(sorted(epsilons)[1]",
      f"{NOISE}::test_disjoint_components_cost_the_dearest_and_shared_examples_pay_for_each"),
    M(MECHANISM, "self.delta, sampling_rate=self.sampling_rate)", "self.delta, sampling_rate=self.sampling_rate / 2)",
      f"{AUDIT}::test_the_account_is_of_the_rate_that_was_used"),
    M("tangent_jax/privacy/accounting.py", "    while spent(sigma) > epsilon:\n        sigma, more", "    while False:\n        sigma, more",
      f"{LEDGER}::test_a_claim_never_exceeds_its_budget"),
    M(MECHANISM, "dataclasses.replace(self.mechanism, steps=self.steps_paid)", "self.mechanism",
      f"{ACCOUNTING}::test_what_several_runs_cost_together_is_dp_accountings_own"),
    M(MECHANISM, "s.mechanism.sampling_rate, s.steps_paid)", "s.mechanism.sampling_rate, s.mechanism.steps)",
      f"{ACCOUNTING}::test_what_several_runs_cost_together_is_dp_accountings_own"),
    M(MECHANISM, "or \"mechanism\" in fields:", "or fields:", f"{STORE}::test_an_account_that_version_0_2_wrote_is_read_in_provenance_and_journal"),
    M(ACCOUNT, "min(1e-4, min(deviations) / 4)", "1e-4",
      f"{ACCOUNTING}::test_many_steps_of_much_noise_are_one_gaussian_and_are_not_rounded_away"),
    M(ACCOUNT, "return search(exactly, epsilon, *search(roughly, epsilon, start, -2.0))[0]", "return search(roughly, epsilon, start, -2.0)[0]",
      f"{ACCOUNTING}::test_a_budget_is_met_closely_and_in_few_trials_at_any_rate"),
    M(ACCOUNT, "*search(roughly, epsilon, start, -2.0))[0]", "1000 * start, -2.0)[0]",
      f"{ACCOUNTING}::test_a_budget_is_met_closely_and_in_few_trials_at_any_rate"),
    M(ACCOUNT, "loss.self_compose(rest)) if rest else total", "loss.self_compose(rest)) if not rest else total",
      f"{ACCOUNTING}::test_steps_composed_in_stages_are_the_steps_composed_at_once"),
    M(ACCOUNT, "require(best[1] > epsilon / 2,", "require(True,", f"{ACCOUNTING}::test_a_delta_that_rounding_exceeds_is_refused"),
    M("tangent_jax/privacy/audit.py", "(absent[1::2], present[1::2])", "(absent[::2], present[::2])",
      f"{AUDIT}::test_the_threshold_is_chosen_on_other_scores_than_it_is_counted_on"),
    # One run audited by its canaries
    M(CANARIES, "np.unpackbits(np.frombuffer(os.urandom(count), np.uint8))[:count]", "np.unpackbits(np.frombuffer(os.urandom(count), np.uint8)).repeat(2)[:count]", f"{ONE_RUN}::test_coins_are_fair_and_new_in_every_run"),
    M(CANARIES, "np.frombuffer(os.urandom(count), np.uint8)", "np.random.default_rng(0).integers(0, 256, count, np.uint8)", f"{ONE_RUN}::test_coins_are_fair_and_new_in_every_run"),
    M(CANARIES, "        if not path.exists():\n", "        if True:\n", f"{ONE_RUN}::test_a_run_that_was_killed_goes_on_with_its_coins_and_scores_the_steps_that_count"),
    M(ATTACK, "return Audited(fitted, scores, coins)", "return Audited(fitted, scores + coins, coins)", f"{ONE_RUN}::test_a_trainer_that_sees_no_canary_gives_scores_that_know_no_coin"),
    M(ATTACK, "dataclasses.replace(m, count=len(images))", "dataclasses.replace(m, count=len(images) + len(canaries) // 2)", f"{ONE_RUN}::test_scores_of_a_sound_run_are_normal_and_prove_no_more_than_the_claim"),
    M(ATTACK, "rate * (i + c / 2)", "rate * i", f"{ONE_RUN}::test_canaries_of_a_vision_transformer_are_scored_as_their_gradients_are"),
    M(ATTACK, "return scales * along, scales * norms", "return along, scales * norms", f"{ONE_RUN}::test_canaries_of_a_vision_transformer_are_scored_as_their_gradients_are"),
    M(ATTACK, "mechanism.clip_norm * g - r, scaled, ridge", "mechanism.clip_norm * g, scaled, ridge", f"{ONE_RUN}::test_the_private_gradients_of_momentum_and_a_penalty_are_in_the_released_steps"),
    M(ATTACK, "return gradient, optimizer.update(scaled, state, before)[1]", "return gradient, state", f"{ONE_RUN}::test_the_private_gradients_of_momentum_and_a_penalty_are_in_the_released_steps"),
    M(BOUNDS, "(1 - confidence) / 2", "1 - confidence", f"{ONE_RUN}::test_the_error_is_shared_by_both_bounds_and_by_all_numbers_of_guesses"),
    M(BOUNDS, "error / len(PARTS)", "error", f"{ONE_RUN}::test_the_error_is_shared_by_both_bounds_and_by_all_numbers_of_guesses"),
    M(BOUNDS, "tail = binom.sf(right - 1,", "tail = binom.cdf(right - 1,", f"{ONE_RUN}::test_guesses_prove_what_the_paper_prints"),
    M(BOUNDS, "tail + 2 * canaries * delta * most", "tail", f"{ONE_RUN}::test_guesses_prove_what_the_paper_prints"),
    M(BOUNDS, "brentq(lambda centre: nct.sf(t, freedom, centre) - error,", "brentq(lambda centre: nct.sf(t, freedom, centre) - (1 - error),", f"{ONE_RUN}::test_the_gaussian_bound_exceeds_the_truth_as_seldom_as_is_said_and_comes_near_it"),
    M("experiments/private.py", "F.audit is None or F.seed is None", "True", "tests/experiments/test_private_binaries.py::test_wrong_uses_are_one_clear_line_and_nothing_is_written"),
    # The divisor
    M(TRAIN, "_private_step(state, total, expected, key", "_private_step(state, total, float((total.norms > 0).sum()), key", f"{NOISE}::test_a_sample_is_divided_by_a_public_constant_never_by_its_size"),
    M(MECHANISM, "return self.sampling_rate * self.public_count(examples)", "return self.public_count(examples)", f"{NOISE}::test_a_sample_is_divided_by_a_public_constant_never_by_its_size"),
    M(MECHANISM, "return examples if self.count is None else self.count", "return examples", f"{NOISE}::test_a_sample_is_divided_by_a_public_constant_never_by_its_size"),
    # Ledger and checkpoint
    M("tangent_jax/privacy/ledger.py", "        require(fits or lost,", "        require(True,",
      f"{LEDGER}::test_one_of_the_two_restored_from_a_backup_is_told"),
    M("tangent_jax/privacy/ledger.py", "            require(not checkpoints,", "            require(True,",
      f"{LEDGER}::test_another_setting_in_a_folder_whose_ledger_is_gone_is_refused"),
    M("tangent_jax/privacy/ledger.py", "        require(same, \"Ledger\"", "        require(True, \"Ledger\"",
      f"{LEDGER}::test_an_edit_whose_seal_was_computed_anew_still_contradicts_the_run"),
    M("tangent_jax/privacy/ledger.py", "        self.check_lock()\n        content", "        content",
      f"{LEDGER}::test_a_lock_deleted_during_a_run_stops_it_before_it_pays"),
    M("tangent_jax/core/records.py", "require(seal == own,", "require(True or seal == own,",
      f"{IDENTITY}::test_a_damaged_checkpoint_is_one_line"),
    M("tangent_jax/train/checkpoints.py", "batches.targets[batches.rows], batches.batch_size", "batches.batch_size",
      f"{IDENTITY}::test_two_models_two_data_sets_two_settings_never_share_a_checkpoint"),
    M("tangent_jax/train/checkpoints.py", "data = Rows(batches.inputs, batches.rows),", "data = Rows(batches.inputs, batches.rows[:64]),",
      f"{IDENTITY}::test_two_models_two_data_sets_two_settings_never_share_a_checkpoint"),
    M("tangent_jax/train/checkpoints.py", "folder.is_dir() and folder_fingerprint(folder) == stored", "folder.is_dir()",
      f"{IDENTITY}::test_a_damaged_checkpoint_is_one_line"),
    M("tangent_jax/train/fit.py", "run_identity(source, training.traced, jax.tree.leaves((training, state)), epochs)", "run_identity(source, training.traced, jax.tree.leaves((training, state)))",
      f"{IDENTITY}::test_two_models_two_data_sets_two_settings_never_share_a_checkpoint"),
    M("tangent_jax/train/fit.py", "run_identity(source, training.traced, jax.tree.leaves((training, state)), epochs)", "run_identity(source, jax.tree.leaves((training, state)), epochs)",
      f"{IDENTITY}::test_a_run_after_a_change_of_the_users_code_is_a_fresh_run"),
    M("tangent_jax/train/fit.py", "run_identity(source, training.traced, jax.tree.leaves((training, state)), epochs)", "run_identity(source, training.traced, epochs)",
      f"{IDENTITY}::test_two_models_two_data_sets_two_settings_never_share_a_checkpoint"),
    M("tangent_jax/train/fit.py", "    return training, Saver(folder, run_identity(source,", "    bare = dataclasses.replace(training, traced='')\n    return bare, Saver(folder, run_identity(source,",
      f"{IDENTITY}::test_a_global_that_changes_under_a_function_is_another_run_in_the_same_process"),
    M("tangent_jax/core/identities.py", "    for constant in closed.consts:\n        yield from of_array(np.asarray(constant) if np.ndim(constant) == 0 else constant)\n", "",
      f"{IDENTITY}::test_two_models_two_data_sets_two_settings_never_share_a_checkpoint"),
    M("tangent_jax/core/identities.py", "            if isinstance(v, Literal):\n                yield from of_parameter(v.val)", "            if isinstance(v, Literal):\n                yield b''",
      f"{IDENTITY}::test_a_run_after_a_change_of_the_users_code_is_a_fresh_run"),
    M("tangent_jax/core/identities.py", '    yield f"array {value.dtype} {value.shape};".encode()', '    yield b"array"',
      f"{IDENTITY}::test_values_are_told_apart_by_their_content"),
    M("tangent_jax/core/identities.py", "        require(kind not in CALLBACKS,", "        require(True,",
      f"{IDENTITY}::test_a_callback_to_the_host_is_refused_by_its_name"),
    M("tangent_jax/core/identities.py", 'UNDECIDING = ("name", ', "UNDECIDING = (",
      f"{IDENTITY}::test_what_changes_no_result_changes_no_identity"),
    M("tangent_jax/train/checkpoints.py", "is_same = history.measure is not None and history.measure == checkpoint.measure", "is_same = True",
      f"{IDENTITY}::test_what_is_measured_decides_no_step_and_is_kept_only_where_it_says_its_name"),
    M("tangent_jax/models/features.py", "str(stored_dtype), traced, read)", "str(stored_dtype), read)",
      "tests/models/test_features.py::test_a_model_whose_code_or_any_field_changed_gets_new_rows"),
    M("tangent_jax/models/features.py", "str(stored_dtype), traced, read)", "str(stored_dtype), traced)",
      "tests/models/test_features.py::test_the_key_follows_what_decides_the_rows"),
    # Losses, and examples that see each other
    M("tangent_jax/train/objective.py", "    return jax.vmap(of_one)(outputs, targets, *keys)", "    return function(outputs, targets, *keys)",
      "tests/train/test_losses.py::test_an_example_cannot_see_another_whatever_the_loss_says"),
    M("tangent_jax/train/objective.py", "        return jnp.sum(self.losses(outputs, y, key) * present)", "        return jnp.sum(self.loss(outputs, y) * present)",
      "tests/train/test_fit.py::test_a_coupled_loss_trains_on_no_padding"),
    M("tangent_jax/privacy/clipping.py", "jnp.sqrt(squared + jnp.where(finite, rounding, 0))", "jnp.sqrt(squared)",
      f"{CLIPPING}::test_gradients_of_tokens_that_cancel_are_never_clipped_too_little"),
    M(TRAIN, "    check_no_batching(predict, dw, batches, objective)\n    require(", "    require(",
      f"{NOISE}::test_a_function_that_says_itself_how_it_is_batched_is_refused"),
    M("tangent_jax/train/fit.py", "t.step(state, batch, at)[0]", "t.step(state, batch, 0.0)[0]",
      f"{IDENTITY}::test_an_optimisers_use_of_the_progress_is_in_its_program"),
    M("tangent_jax/core/identities.py", "        yield from of_parameter(sorted(map(repr, value)))", "        yield repr(value).encode()",
      f"{IDENTITY}::test_a_program_over_two_axes_is_the_same_in_another_process"),
    M("tangent_jax/train/batches.py", "(0, padding), constant_values=filler)", "(0, padding))",
      "tests/train/test_fit.py::test_what_is_not_asked_for_is_no_padding_either"),
    M("tangent_jax/models/features.py", "**settings, traced=here.partition(\"-\")[0])", "**settings)",
      "tests/models/test_features.py::test_code_that_changes_in_one_process_gets_new_rows"),
    M("tangent_jax/privacy/norms.py", "losses = Objective(loss).losses", "losses = loss",
      f"{CLIPPING}::test_a_coupled_loss_moves_no_sum_by_more_than_its_sensitivity"),
    M(TRAIN, "        check_alone(\"fit_private\", predict, dw, x, y, objective)\n", "        pass\n",
      f"{NOISE}::test_a_model_whose_examples_see_each_other_is_refused_before_the_first_step"),
    M(TRAIN, '        not twice, "fit_private"', '        True, "fit_private"', f"{NOISE}::test_wrong_uses_are_one_clear_line"),
    M("tangent_jax/train/losses.py", "return self.kappa * y, 2 / classes * (1 + (self.alpha - 1) * y)", "return self.kappa * y, 1 / classes * (1 + (self.alpha - 1) * y)",
      "tests/train/test_losses.py::test_rescaled_square_is_its_definition"),
    M("tangent_jax/train/losses.py", "vectors * jnp.sqrt(jnp.maximum(values, 0))", "vectors * jnp.maximum(values, 0)",
      "tests/train/test_losses.py::test_a_root_of_the_hessian_is_one"),
    M("tangent_jax/train/fit.py", "jax.vmap(partial(jax.random.fold_in, of_epoch))(jnp.arange(first, first + count))", "jnp.broadcast_to(of_epoch, (count,))",
      "tests/train/test_fit.py::test_a_keyed_predictor_draws_anew_at_every_step_and_the_same_when_resumed"),
    # The house of a run: settings, data, honesty of experiments
    M(RECIPE, "make_objective(self.loss, self.penalty, **{n: getattr(self, n) for n in hyper_parameters(self.loss)})", "make_objective(self.loss, self.penalty)",
      f"{HONESTY}::test_a_recipe_is_what_it_says"),
    M("tangent_jax/train/losses.py", "    kappa: float | Array = 15.0", "    kappa: float | Array = 1.0",
      f"{HONESTY}::test_the_defaults_are_the_papers"),
    M("tangent_jax/train/optimizers.py", "DECAY_AT = (15 / 30, 25 / 30)", "DECAY_AT = (10 / 30, 20 / 30)",
      f"{HONESTY}::test_the_defaults_are_the_papers"),
    M(RECIPE, "pretrained.reset(make_subset(pretrained.model, kind, self.blocks), fresh)",
      "pretrained.reset(make_subset(pretrained.model, kind, self.blocks), jax.random.key(1))", f"{HONESTY}::test_a_recipe_is_what_it_says"),
    M(RECIPE, "pretrained.with_head(drawn, head)", "pretrained.with_head(drawn, jax.random.key(1))",
      f"{HONESTY}::test_a_recipe_is_what_it_says"),
    M("tangent_jax/core/trees.py", "return jax.random.fold_in(key, zlib.crc32(path.encode()))", "return key",
      f"{HONESTY}::test_fresh_leaves_have_their_scales_and_keys_of_their_own"),
    M("tangent_jax/models/vit/leaves.py", "return 0.01 * jax.random.normal", "return 1.0 * jax.random.normal",
      f"{HONESTY}::test_fresh_leaves_have_their_scales_and_keys_of_their_own"),
    M("tangent_jax/models/vit/leaves.py", "return 0.02 * jax.random.truncated_normal", "return 0.2 * jax.random.truncated_normal",
      f"{HONESTY}::test_fresh_leaves_have_their_scales_and_keys_of_their_own"),
    M("experiments/shared/search.py", 'held = {"on_test": False, "shards": shards}', 'held = {"on_test": True, "shards": shards}',
      f"{HONESTY}::test_settings_are_chosen_on_held_out_images"),
    M("experiments/table3.py", "held = self.measure(grid, on_test=False)", "held = self.measure(grid, on_test=True)",
      f"{HONESTY}::test_settings_are_chosen_on_held_out_images"),
    M("experiments/finetune.py", "tj.Measure(predict, test)", "tj.Measure(predict, train)",
      f"{HONESTY}::test_the_accuracy_that_finetune_and_private_report_is_that_of_the_test_images"),
    M("experiments/private.py", "tj.Measure(predict, test, every", "tj.Measure(predict, train, every",
      f"{HONESTY}::test_the_accuracy_that_finetune_and_private_report_is_that_of_the_test_images"),
    M("experiments/forget.py", "means = [values[ranked[k:]].mean(0)", "means = [values[ranked].mean(0)",
      f"{HONESTY}::test_what_is_removed_is_in_no_mean"),
    M("tangent_jax/privacy/membership.py", "    out = ~held\n", "    out = held\n",
      "tests/privacy/test_membership.py"),
    M("tangent_jax/privacy/membership.py", "for side in (members, others)]", "for side in (others, members)]",
      "tests/privacy/test_membership.py::test_an_attack_tells_the_members_of_a_model_that_memorised_them_and_no_others"),
    M("tangent_jax/privacy/membership.py", "np.sort(rng.permutation(2 * size)[:size])", "np.arange(size)",
      "tests/privacy/test_membership.py::test_shadow_models_are_trained_on_half_of_members_and_others_each_time_another"),
    M("tangent_jax/train/metrics.py", "np.abs(gaps).sum()", "abs(gaps.sum())",
      "tests/train/test_metrics.py::test_the_calibration_error_is_the_mean_gap_of_the_bins"),
    M("tangent_jax/train/metrics.py", "np.eye(p.shape[1])[labels]) ** 2, 1)", "np.eye(p.shape[1])[labels]) ** 2, 1) ** 0.5",
      "tests/train/test_metrics.py::test_the_brier_score_is_least_in_the_mean_for_the_true_probabilities"),
    M("experiments/shared/shards.py", "import expanded\n", "import expanded\nfrom experiments.shared.flags import define; define('shards')\n",
      "tests/test_imports.py::test_no_flag_appears_by_importing_what_the_binaries_share"),
    M("tangent_jax/data/decode.py", "or set skip_unreadable=True", "or pass --skip_unreadable",
      "tests/test_imports.py::test_no_message_of_the_library_names_a_flag"),
    M("tangent_jax/models/features.py", "return self.take(np.flatnonzero(~held)), self", "return self, self",
      "tests/models/test_features.py::test_what_is_held_out_of_train_is_not_in_it"),
    M(IDENTIFIERS, "{state.st_size} {state.st_ino} {state.st_mtime_ns} {state.st_ctime_ns}", "{state.st_size} {state.st_ino} {state.st_mtime_ns}",
      f"{INDEX}::test_a_file_that_is_replaced_and_looks_as_before_is_read_again"),
    M(IDENTIFIERS, "<= TICK * 10**9", "<= 0", f"{INDEX}::test_a_file_of_this_moment_is_not_kept"),
    M(IDENTIFIERS, "                new[key] = identifier\n", "                pass\n",
      f"{INDEX}::test_an_image_is_read_for_its_identifier_once_until_its_file_changes"),
    M(IDENTIFIERS, 'f"{state}\\0{place}"', 'f"{state}"', f"{INDEX}::test_zips_and_rows_are_known_by_their_file"),
    M("tangent_jax/data/sources.py", "content_identifier(content) == identifiers[i], f", "True, f",
      f"{INDEX}::test_an_image_that_is_not_what_was_identified_is_not_decoded"),
    M("tangent_jax/data/sources.py", "held.pop(identifiers[i], None)", "held.get(identifiers[i])",
      f"{INDEX}::test_an_image_is_read_once_to_be_identified_and_decoded"),
    M("tangent_jax/data/sources.py", "len(content) <= self.room and", "True and", f"{INDEX}::test_only_so_many_bytes_are_held"),
    M("tangent_jax/data/sources.py", "        if \"_identifiers\" in vars(self):\n", "        if False:\n",
      f"{INDEX}::test_an_image_is_read_once_to_be_identified_and_decoded"),
    M("tangent_jax/models/features.py", "examples.read_identified()", "examples.read",
      "tests/models/test_features.py::test_an_image_that_was_altered_since_it_was_identified_gives_no_row"),
    M(TARS, "content.read(BLOCK) == bytes(BLOCK)", "True", f"{LAYOUTS}::test_tars_that_are_not_whole_are_refused"),
    M(TARS, "member.size >= 0 and end <= size", "member.size >= 0", f"{LAYOUTS}::test_tars_that_are_not_whole_are_refused"),
    M(TARS, 'keep({key: json', 'dict({key: json', f"{INDEX}::test_the_headers_of_a_tar_are_read_once_until_it_changes"),
    M(TARS, "once = extension not in sample.images", "once = True", f"{LAYOUTS}::test_tars_that_are_not_whole_are_refused"),
    M(HUGGING, "    column.validate(full=True)\n", "", f"{LAYOUTS}::test_offsets_that_lead_out_of_an_arrow_file_are_refused"),
    M(HUGGING, "require(is_whole,", "require(True,", f"{LAYOUTS}::test_a_file_that_was_cut_off_is_refused_and_a_row_without_an_image_is_unreadable"),
    M(HUGGING, "if path and times[path] == 1 else", "if path else", f"{LAYOUTS}::test_an_image_is_named_by_its_path_and_by_its_row_where_paths_are_alike"),
    M(HUGGING, "sorted(wanted - present)", "[]", f"{LAYOUTS}::test_files_that_do_not_belong_together_are_refused_by_name"),
    M(HUGGING, "require(size <= MOST_GROUP", "require(size", f"{LAYOUTS}::test_a_row_group_that_memory_cannot_hold_is_refused_before_it_is_read"),
    M(COLUMNS, "return label is None or label in (-1, \"\")", "return label is None", f"{LAYOUTS}::test_one_split_is_divided_by_content_and_labels_that_are_missing_are_left_out_and_said"),
    M(HUGGING, " and class_names(own, label, file) == classes", "", f"{LAYOUTS}::test_files_that_do_not_belong_together_are_refused_by_name"),
    M(COLUMNS, "len(fitting) == 1", "True", f"{LAYOUTS}::test_several_columns_that_fit_are_named_and_one_is_chosen"),
    M(COLUMNS, "require(len(around) < 2", "require(True", f"{LAYOUTS}::test_files_that_do_not_belong_together_are_refused_by_name"),
    M("tangent_jax/data/identifiers.py", "return hashlib.sha256(content).hexdigest()", "return hashlib.sha256(content[:64]).hexdigest()",
      "tests/data/test_folders.py::test_every_fifth_image_by_content_is_test"),
    M("tangent_jax/data/preprocessing.py", "crop: float = 0.9\n", "crop: float = 0.875\n",
      "tests/data/test_decode.py::test_the_defaults_are_augregs_and_each_filter_is_its_own"),
    M("tangent_jax/data/decode.py", "\"bicubic\": Image.Resampling.BICUBIC", "\"bicubic\": Image.Resampling.BILINEAR",
      "tests/data/test_decode.py::test_the_defaults_are_augregs_and_each_filter_is_its_own"),
    M("tangent_jax/data/decode.py", "    picture = ImageOps.exif_transpose(picture)\n", "",
      "tests/data/test_decode.py::test_a_photograph_is_turned_upright"),
    M("tangent_jax/train/targets.py", "    most = (1 << 31) if classes is None else classes\n", "    most = 1 << 31\n",
      f"{IDENTITY}::test_wrong_uses_are_one_clear_line"),
    M("tangent_jax/train/fit.py", "    require(np.isfinite(loss), function,", "    require(True, function,", f"{IDENTITY}::test_wrong_uses_are_one_clear_line"),
    # The model, in plain and tangent alike
    M(FORWARD, "*layer_norm(x, dx, p[\"norm2\"], config.eps))", "*layer_norm(x, dx, p[\"norm2\"], 1e-3))", FIXTURES),
    M(EMBEDDING, "x, dx = x + position, total", "x, dx = x + position.at[0].set(0), total", FIXTURES),
    M(EMBEDDING, "if config.pre_norm else (x, dx)", "if False else (x, dx)", FIXTURES),
    M(FORWARD, "        y, dy = scale(y, dy, p[f\"layer_scale{j}\"][\"scale\"])\n", "        pass\n", FIXTURES),
    M("tangent_jax/models/vit/pools.py", "jnp.mean(x[:, config.prefix :], 1)", "jnp.mean(x[:, 1:], 1)", FIXTURES),
    M("tangent_jax/models/vit/pools.py", "    return y + z, total(dy, dz)\n", "    return z, dz\n", FIXTURES),
    M(EMBEDDING, "swapaxes(2, 3)\n", "swapaxes(2, 3).swapaxes(1, 2)\n", FIXTURES),
    M("tangent_jax/models/vit/names.py", "gate, value = equal_parts(", "value, gate = equal_parts(", FIXTURES),
    M("tangent_jax/rules/rotary.py", "(np.arange(count) + 0.5) / count - 1)", "np.arange(count) / count - 1)", FIXTURES),
    M("tangent_jax/rules/rotary.py", "return q * cos - turned(q) * sin,", "return q * cos + turned(q) * sin,", f"{RULES}::test_closed_form_equals_jvp_in_f64"),
    M("tangent_jax/rules/class_query.py", "(scale(u, du, norm[\"bias\"]), scale(q, dq, key[\"bias\"]))", "(scale(u, du, norm[\"bias\"]),)",
      f"{RULES}::test_closed_form_equals_jvp_in_f64"),
    M("tangent_jax/models/vit/weights.py", "    require(good, \"load\", f\"{said} in config.json\"", "    require(True, \"load\", f\"{said} in config.json\"",
      f"{MODERN}::test_a_config_that_contradicts_the_tensors_is_refused_by_its_field"),
    M("tangent_jax/models/vit/weights.py", "sizes=(\"positions\", \"width\"", "sizes=(\"width\"", f"{MODERN}::test_a_rotary_model_s_weights_are_not_a_plain_model_s"),
    M("tangent_jax/models/vit/model.py", "if name not in LATER or value != defaults[name]", "if True", f"{FAMILY}::test_settings_are_those_of_version_0_2_so_that_its_components_still_compose"),
    M("tangent_jax/models/files.py", "    is_exact = \"height\" in size or", "    is_exact =", f"{MODERN}::test_the_preprocessor_config_says_how_images_are_resized"),
    M("tangent_jax/data/preprocessing.py", "            return wide, high\n", "            return high, wide\n",
      "tests/data/test_decode.py::test_a_picture_is_resized_to_cover_what_is_cropped_or_exactly"),
    M("tangent_jax/data/decode.py", "round((picture.width - width) / 2)", "0",
      "tests/data/test_decode.py::test_a_picture_is_resized_to_cover_what_is_cropped_or_exactly"),
    M(FORWARD, "    if i == config.class_token_at:", "    if i - 1 == config.class_token_at:",
      "tests/models/test_vit.py::test_a_replaced_class_token_is_read_at_its_block"),
    M("tangent_jax/models/vit/model.py", "\"bicubic\", antialias=True)", "\"bilinear\", antialias=False)", FIXTURES),
    M("tangent_jax/linearization.py", "return Dual(*jax.jvp(lambda part: f(trees.replace(w, part), *x), (trees.restrict(w, dw),), (dw,)))",
      "return Dual(*jax.jvp(lambda w: f(w, *x), (w,), (trees.replace(jax.tree.map(jax.numpy.zeros_like, w), dw),)))",
      f"{HONESTY}::test_a_frozen_leaf_costs_nothing_by_autodiff"),
    M("tangent_jax/rules/activations.py", "jnp.sum(a * ds, -1, keepdims=True)", "0", "tests/rules/test_rules.py"),
    M("tangent_jax/rules/norms.py", "jnp.mean(dx, -1, keepdims=True)", "0", "tests/rules/test_rules.py"),
    M("tangent_jax/models/load.py", "Description(name, base.settings, of_images,", "Description(name, base.settings, Preprocessing(),",
      f"{FAMILY}::test_what_export_writes_reads_back_without_being_told_the_model"),
    M("tangent_jax/models/load.py", "        require(again == model, function,", "        require(True, function,",
      f"{FAMILY}::test_what_would_not_read_back_is_not_written"),
    M("tangent_jax/models/parametrize.py", "    return base, (*inner, {name: own})", "    return base, ()",
      f"{FAMILY}::test_what_save_writes_reads_back"),
    M("tangent_jax/models/anchor.py", "            require(shape == actual, \"Pretrained\"", "            require(True, \"Pretrained\"",
      f"{LORA}::test_weights_that_are_not_the_model_s_are_one_clear_line"),
    M("tangent_jax/models/vit/model.py", "        require(not old, \"with_adapters\"", "        require(True, \"with_adapters\"",
      f"{LORA}::test_after_any_two_changes_the_weights_are_the_model_s_or_the_second_is_refused_by_name"),
    M("tangent_jax/components/exports.py", "files.get(path.name) == file_fingerprint(path)", "path.name in files",
      "tests/components/test_exports.py::test_a_file_that_provenance_does_not_name_is_refused"),
    M(SERVING, "platforms=PLATFORMS)(specs", "platforms=PLATFORMS[:1])(specs", f"{SERVED}::test_one_program_is_for_three_platforms_and_names_neither_kernels_nor_files_of_this_machine"),
    M(SERVING, "len(x))\"), no_source_paths():", "len(x))\"):", f"{SERVED}::test_one_program_is_for_three_platforms_and_names_neither_kernels_nor_files_of_this_machine"),
    M("tangent_jax/rules/cudnn.py", "isinstance(q.shape[0], int) and ", "", f"{SERVED}::test_one_program_is_for_three_platforms_and_names_neither_kernels_nor_files_of_this_machine"),
    M(SERVING, "(tree.get(\"dw\", {}), x)", "(jax.tree.map(jnp.zeros_like, tree.get(\"dw\", {})), x)", f"{SERVED}::test_a_program_gives_the_predictors_outputs_for_any_batch_size"),
    M(SERVING, "w=tree[\"w\"])(tree", "w=tree[\"w\"], output=\"tangent\")(tree", f"{SERVED}::test_a_program_gives_the_predictors_outputs_for_any_batch_size"),
    M("tangent_jax/components/exports.py", "    check_format(\"export\", format)\n", "", f"{SERVED}::test_what_cannot_leave_is_refused_in_one_line_and_nothing_is_written"),
    M(SCRIPT, ".hexdigest() != fingerprint:", ".hexdigest() == \"\":", f"{SERVED}::test_the_script_runs_on_a_photo_where_the_library_is_not_installed"),
    M(SCRIPT, "if inputs.shape[1:] != shape or inputs", "if inputs", f"{SERVED}::test_a_program_refuses_other_inputs_in_one_line"),
    M(SCRIPT, "    if picture.has_transparency_data:", "    if False:", f"{SERVED}::test_the_script_decodes_a_picture_as_the_library_does"),
    # Components, removal, the store
    M("tangent_jax/models/anchor.py", "items() if name != \"head\"}", "items() if name not in (\"head\", \"block_0\")}",
      f"{STORE}::test_an_anchor_is_known_by_every_leaf_outside_its_head"),
    M("tangent_jax/components/store.py", "sums.compose(self.summands, coefficients) if coefficients else ", "",
      f"{STORE}::test_composing_holds_one_component_at_a_time"),
    M("tangent_jax/components/state.py", "if not gone & {*e[\"names\"]}}", "if not gone & {*e[\"names\"]} or \"weighted\" in e[\"names\"]}",
      f"{STORE}::test_composing_holds_one_component_at_a_time"),
    M(REMOVE, "exported_before=tuple(path for held, path in store.state.exports if held & {*removed}),",
      "exported_before=(),", f"{REMOVAL}::test_an_export_is_journaled_before_it_is_written"),
    M("tangent_jax/components/store.py", "            if unchanged and ", "            if False and ",
      f"{REMOVAL}::test_a_receipt_whose_sum_is_not_the_survivors_is_told"),
    M("tangent_jax/components/disk.py", "whole = path.is_file() and is_whole(path, entry)", "whole = path.is_file()",
      f"{REMOVAL}::test_every_read_checks_its_hash"),
    M("tangent_jax/components/files.py", "        good = metadata.get(\"binding\") == binding(trees.fingerprint(dw), metadata)\n", "        good = True\n",
      f"{REMOVAL}::test_a_step_and_what_is_said_of_it_belong_together"),
    M("tangent_jax/components/store.py", "            self.check_forgotten(\"Store.add\", provenance)\n", "",
      f"{REMOVAL}::test_a_component_of_removed_examples_is_not_added_again"),
    M("tangent_jax/components/store.py", "frozenset(hidden(origin.identifiers))) for origin in origins] + self.state.released",
      "frozenset(hidden(origin.identifiers))) for origin in origins]", f"{REMOVAL}::test_what_was_composed_or_exported_stays_spent_when_it_is_removed"),
    M("tangent_jax/components/apart.py", "    shards = placement.from_writer(lambda: without_forgotten(store, features, shards))\n", "",
      f"{REMOVAL}::test_composing_after_a_removal_does_not_bring_removed_images_back"),
    M("tangent_jax/models/cache.py", "            file.write(content)\n", "            pass\n",
      f"{REMOVAL}::test_no_file_holds_a_removed_images_rows_and_the_others_stay"),
    M(CACHE, 'sorted(self.folder.glob("journal*.jsonl"))', "[self.journal]", f"{FEATURES}::test_each_process_has_a_journal_and_reads_those_of_all"),
    M(CACHE, "lines[self.lines_read.get(journal, 0) :]", "[]", f"{FEATURES}::test_each_process_has_a_journal_and_reads_those_of_all"),
    M(CACHE, "[(start * self.nbytes, as_bytes", "[(rows.start * self.nbytes, as_bytes", f"{FEATURES}::test_a_large_cache_is_spread_over_files_and_folders"),
    M(CACHE, "for number in sorted({row // layout.rows_per_file for row in rows}):", "for number in (0, 2):", f"{FEATURES}::test_erasure_reaches_the_rows_in_every_folder_from_any_of_them"),
    M(CACHE, "                errors.append(error)\n", "                pass\n", f"{FEATURES}::test_erasure_names_a_folder_that_is_not_there_and_erases_the_others"),
    M(CACHE, "return complete if complete.stamps == stamps and", "return complete if", f"{FEATURES}::test_a_cache_that_nobody_wrote_to_since_it_was_complete_is_not_read_to_check_it"),
    M(CACHE, "                check_there(path.parent, self.folder)\n", "                path.parent.mkdir(exist_ok=True, parents=True)\n",
      f"{FEATURES}::test_a_spread_cache_that_is_damaged_or_not_there_is_noticed"),
    M(CACHE, "            for path in new:  # other rows stay\n", "            for path in []:\n", f"{FEATURES}::test_a_second_disk_that_is_full_leaves_nothing_of_new_rows_and_all_of_old_ones"),
    M("tangent_jax/core/rows.py", 'where = np.searchsorted(self.ends, flat, "right")', 'where = np.searchsorted(self.ends, flat, "left")', f"{FEATURES}::test_a_large_cache_is_spread_over_files_and_folders"),
    M(WORKERS_FILE, "            images[i] = 0 if isinstance(image, InputError) else image\n", "            images[i] = images[i] if isinstance(image, InputError) else image\n",
      "tests/data/test_workers.py::test_chunks_come_in_order_with_the_same_bytes_and_the_unreadable_by_place"),
    M(WORKERS_FILE, "(parent.join(), os._exit(1))", "parent.join()", "tests/data/test_workers.py::test_no_process_outlives_its_parent"),
    M(WORKERS_FILE, "signal.SIG_BLOCK, {signal.SIGINT}", "signal.SIG_BLOCK, set()", "tests/data/test_workers.py::test_no_process_outlives_its_parent"),
    M("tangent_jax/components/erasure.py", "                shutil.rmtree(checkpoints / origin.run)\n", "",
      f"{REMOVAL}::test_no_file_holds_a_removed_images_rows_and_the_others_stay"),
    M(ERASURE, "[*(os.fspath(cache) for cache in caches), *(p for", "[*(p for", f"{PLANS}::test_the_cache_that_is_given_is_searched_besides_those_that_the_provenance_names"),
    M(REMOVE, "[] if cache is None else cache.folders", "[]", f"{PLANS}::test_the_cache_that_is_given_is_searched_besides_those_that_the_provenance_names"),
    M(ERASURE, "            traces.not_reached.append(f\"{cached}: {getattr(error, 'strerror', None) or error}\")\n", "            pass\n",
      f"{PLANS}::test_what_cannot_be_written_is_not_reached_and_the_rest_is"),
    M(ERASURE, "        traces.not_reached.append(f\"{folder}: {error}\")\n", "        pass\n",
      f"{PLANS}::test_what_cannot_be_written_is_not_reached_and_the_rest_is"),
    M(ERASURE, "        traces.not_reached.append(f\"{place}: {error.strerror}\")\n", "",
      f"{PLANS}::test_what_cannot_be_written_is_not_reached_and_the_rest_is"),
    M(REMOVE, "left = len(origin.examples) - len(rows)", "left = len(origin.examples) - len({*dict(rows)})",
      f"{PLANS}::test_a_plan_counts_rows_so_a_twin_leaves_with_its_image"),
    M(REMOVE, "        check_fits(store, plan)\n        before", "        before",
      f"{PLANS}::test_what_changes_the_store_while_a_component_is_trained_again_is_told"),
    M(REMOVE, "    check_retrained(store, plan, retrained)\n    traces", "    traces",
      f"{PLANS}::test_a_retrained_component_takes_the_place_and_must_not_have_seen_what_went"),
    M(REMOVE, "for i in origins[name].identifiers} - left", "for i in origins[name].identifiers}",
      f"{PLANS}::test_a_component_that_goes_by_its_name_takes_what_no_other_saw"),
    M(REMOVE, "    plan.check_possible(how)\n", "", f"{PLANS}::test_each_way_is_possible_or_says_why_not"),
    M(REMOVE, "other or origin.owners.get(name)", "origin.owners.get(name) or other",
      f"{PLANS}::test_a_table_of_owners_says_whose_an_image_is_where_the_components_do_not_and_comes_first"),
    M("tangent_jax/components/provenance.py", "{name: self.owners[name] for _, name in features.examples if name in self.owners}", "self.owners",
      f"{PLANS}::test_owners_are_kept_of_the_examples_that_a_component_saw_alone"),
    M("tangent_jax/components/disk.py", "require(not is_old,", "require(True,",
      f"{STORE}::test_a_store_of_version_0_1_is_refused_in_one_line_and_nothing_of_it_changes"),
    M("tangent_jax/components/journal.py", "                os.fsync(file.fileno())\n", "", f"{REMOVAL}::test_a_line_is_on_the_disk_before_it_counts"),
    M("tangent_jax/core/files.py", "        synchronize(partial)\n", "",
      "tests/core/test_files.py::test_a_file_is_on_the_disk_before_it_has_its_name_and_its_name_before_the_call_returns"),
    M("tangent_jax/core/files.py", "            synchronize(part)\n", "            pass\n",
      "tests/core/test_files.py::test_a_folder_is_on_the_disk_before_it_has_its_name"),
    M("tangent_jax/components/sums.py", "    return leaf * np.asarray(coefficient, leaf.dtype)\n",
      "    return leaf if coefficient == 1 else leaf * np.asarray(coefficient, leaf.dtype)\n",
      "tests/components/test_sums.py::test_a_coefficient_of_one_adds_to_a_copy_never_to_the_callers_component"),
    M("tangent_jax/components/sums.py", "if together >= best:", "if together > best:", f"{HONESTY}::test_a_greedy_soup_keeps_what_does_not_harm"),
    M("tangent_jax/components/sums.py", "    names = sorted(components if coefficients is None else coefficients)\n",
      "    names = list(components if coefficients is None else coefficients)\n",
      "tests/components/test_sums.py::test_removal_is_bitwise_what_had_never_been_there"),
    M("tangent_jax/components/disk.py", "if OURS.fullmatch(p.name)]", "]", f"{REMOVAL}::test_only_files_of_its_own_are_swept"),
    # the optimum
    M(PROBLEM, "return float(self.objective.penalty) * len(self.batches)", "return float(self.objective.penalty) * float(self.example_weights.sum())", f"{OPTIMUM}::test_example_weights_count_examples_and_leave_the_penalty_as_it_was"),
    M(PROBLEM, "total = passes.along(self.zero, self.total_penalty, v)", "total = passes.along(self.zero, 0.9 * self.total_penalty, v)", f"{OPTIMUM}::test_example_weights_count_examples_and_leave_the_penalty_as_it_was"),
    M(PROBLEM, "return [programs, numbers, self.example_weights,", "return [programs, numbers,", f"{OPTIMUM}::test_whatever_decides_a_solution_decides_its_run"),
    M(PROBLEM, ", 0).astype(self.dtype)", ", 0).astype(np.float32).astype(self.dtype)", f"{OPTIMUM}::test_example_weights_count_in_the_dtype_of_the_outputs"),
    M(PROBLEM, "held, got = (v == 0) | ((v >= low) & (v <= high)),", "held, got = (v == 0) | (v <= high),", f"{OPTIMUM}::test_what_cannot_be_solved_is_refused_in_one_line[example_weights that are 0 or in 1.18e-38]"),
    M(PROBLEM, "    require(not missing, function,", "    require(True, function,", f"{OPTIMUM}::test_a_solution_of_another_subset_is_no_start"),
    M(PROBLEM, "is_quadratic = check_square(function, objective.loss, batches.targets[batches.rows[:4]], classes)", "is_quadratic = type(objective.loss).__name__ == 'RescaledSquare'", f"{OPTIMUM}::test_regression_is_solved_to_the_normal_equations"),
    M(SOLVE, "rz / state.rz, state.p)", "0 * rz, state.p)", f"{OPTIMUM}::test_a_square_loss_is_solved_to_the_normal_equations"),
    M(SOLVE, "bound = {name: norm / penalty}", "bound = {name: norm / (20 * penalty)}", f"{OPTIMUM}::test_only_a_pass_with_an_exact_gradient_has_a_certificate_and_it_bounds_the_distance"),
    M(SOLVE, 'name = self.problem.total_penalty, "certificate" if more["exact"] else "estimate"', 'name = self.problem.total_penalty, "certificate"', f"{OPTIMUM}::test_only_a_pass_with_an_exact_gradient_has_a_certificate_and_it_bounds_the_distance"),
    M(SOLVE, "            self.gradient(state.base)\n            self.prepare()\n", "            self.gradient(along(state.base, 1.0, state.offset))\n            self.prepare()\n", f"{OPTIMUM}::test_a_stopped_run_goes_on_to_the_same_bits"),
    M(SOLVE, "problem.decided(dw), curvature, certificate, passes)", "problem.decided(dw), certificate, passes)", f"{OPTIMUM}::test_whatever_decides_a_solution_decides_its_run"),
    M(SOLVE, "        if self.is_done(row):\n            return state, row\n", "", f"{OPTIMUM}::test_factors_are_inverted_only_where_a_pass_will_use_them"),
    M(SOLVE, "left > self.reserve and", "left > 0 and", f"{OPTIMUM}::test_passes_end_a_run_and_the_last_one_checks_the_step_of_the_one_before"),
    M(PASSES, "jnp.asarray(t, a.dtype) * b", "t * b", f"{OPTIMUM}::test_a_float32_model_is_solved_in_a_process_of_64_bits"),
    M(AFFINE, "    require(not reads_dw, function,", "    require(True, function,", "tests/solver/test_affine.py::test_what_bends_is_refused[hardly]"),
    M(AFFINE, "    require(not reads_dw, function,", "    require(True, function,", "tests/solver/test_affine.py::test_a_users_closed_form_is_held_to_what_it_claims"),
    M(AFFINE, "require(bend <= tolerance * size, function,", "require(True, function,", "tests/solver/test_affine.py::test_what_bends_is_refused[round]"),
    M(AFFINE, "good = off <= 1e-3 * size and smallest >= 0", "good = True", f"{OPTIMUM}::test_what_cannot_be_solved_is_refused_in_one_line[a Lying whose gradient is]"),
    M(FACTORS, " / rows.shape[1]", "", f"{CURVATURE}::test_tokens_share_their_kernels_factors"),
    M(FACTORS, "rows = rows * root[:, :, None, None]", "pass", f"{CURVATURE}::test_factors_add_up_over_examples_and_by_weight"),
    M(FACTORS, "widened(jax.vmap(axes.signals)(s))", "jax.vmap(axes.signals)(s)", f"{CURVATURE}::test_factors_of_a_half_precision_model_are_sums_in_f32"),
    M("tangent_jax/rules/probe.py", "return kept_in_half(x, d).astype(x.dtype)", "return jnp.einsum(spec, x, d.astype(x.dtype))", f"{HALF}::test_every_sum_over_examples_is_in_f32"),
    M("tangent_jax/rules/probe.py", "(widened(x) * d).astype(x.dtype)", "x * d.astype(x.dtype)", f"{HALF}::test_every_sum_over_examples_is_in_f32"),
    M("tangent_jax/models/predict.py", "(trees.pair(w, dw), x, start)", "(trees.pair(w, trees.cast(dw, self.dtype)), x, start)", f"{HALF}::test_the_mean_gradient_of_one_example_many_times_is_its_own"),
    M("tangent_jax/models/predict.py", "w, x = prepared(self.model, self.w, x, self.dtype, start)", "w, x = prepared(self.model, self.w, x, None, start)", f"{HALF}::test_what_flows_from_layer_to_layer_is_in_bf16"),
    M(PROBLEM, "return dataclasses.replace(predict, dtype=None)", "return predict", f"{OPTIMUM}::test_products_in_half_precision_solve_to_a_certificate_of_the_exact_optimum"),
    M("tangent_jax/privacy/norms.py", "rounding + of_reweighting(squared + rounding, largest, s.dtype)", "rounding", f"{CLIPPING}::test_halves_that_cancel_are_never_clipped_too_little"),
    M("tangent_jax/privacy/norms.py", 'jax.default_matmul_precision("highest")', 'jax.default_matmul_precision(None)', f"{CLIPPING}::test_clipped_sums_of_f32_are_multiplied_in_f32_on_every_device"),
    M("tangent_jax/privacy/clipping.py", ', precision="highest")', ")", f"{CLIPPING}::test_clipped_sums_of_f32_are_multiplied_in_f32_on_every_device"),
    M("tangent_jax/rules/probe.py", "jax.checkpoint(partial(product, spec), prevent_cse=False)", "partial(product, spec)", f"{HALF}::test_what_a_solver_keeps_of_an_example_stays_in_half"),
    M("tangent_jax/models/int8.py", " * jnp.where(jnp.isfinite(scale), scale, jnp.nan)[..., None]", "", "tests/models/test_features.py::test_a_packed_number_moves_by_at_most_half_a_step_of_its_token"),
    M("tangent_jax/models/int8.py", "jnp.round(x / jnp.where(scale > 0, scale, 1))", "(x / jnp.where(scale > 0, scale, 1))", "tests/models/test_features.py::test_a_packed_number_moves_by_at_most_half_a_step_of_its_token"),
    M("tangent_jax/models/features.py", "lower[-1:] if stored_dtype == np.int8 else lower", "lower", "tests/models/test_features.py::test_int8_rows_hold_the_trunk_rounded_once"),
    M(FACTORS, "(damping / 2) ** 0.5", "damping**0.5", f"{CURVATURE}::test_the_inverse_undoes_the_damped_factors"),
    M(FACTORS, "np.maximum(shift, least)[:, None]", "np.maximum(shift, 0 * least)[:, None]", f"{CURVATURE}::test_factors_of_zero_and_of_rank_one_have_an_inverse_in_f32"),
    M(KERNELS, "            mirror(inverse)\n", "", f"{KERNEL}::test_leaving_out_is_solving_again_without"),
    M(KERNELS, "total = penalty * len(self.centers)", "total = penalty", f"{KERNEL}::test_the_solution_is_the_normal_equations_and_the_solvers"),
    M(KERNELS, "weighted = precision * problem.example_weights[:, None]", "weighted = precision", f"{KERNEL}::test_regression_has_a_kernel_and_a_posterior"),
    M("tangent_jax/solver/jacobian.py", "products *= (xa[:, 0, h] @ xb[:, 0, h].T)[:, None, :, None]", "pass", f"{KERNEL}::test_the_gram_matrix_is_that_of_the_jacobian[blocks-1-token]"),
    M("tangent_jax/solver/influence.py", 'return -np.einsum("mknc,nc->mkn"', 'return np.einsum("mknc,nc->mkn"', f"{KERNEL}::test_leaving_out_is_solving_again_without"),
    M(POSTERIOR, "self.scale * (whole - noise)", "self.scale * whole", f"{KERNEL}::test_the_posterior_is_the_inverse_hessian_by_the_kernel_and_by_solves"),
    M(POSTERIOR, "squared / r.size", "squared / len(r)", f"{KERNEL}::test_tau_is_of_the_best_leave_one_out_likelihood"),
    M(POSTERIOR, "np.pi / 8", "np.pi / 4", f"{KERNEL}::test_the_probit_is_near_the_mean_of_the_sigmoid"),
    M(POSTERIOR, "self.data, self.objective, v, dw, keep=True)", "self.data, self.objective, None, dw, keep=True)", f"{KERNEL}::test_regression_has_a_kernel_and_a_posterior"),
    M(MERGING, "add(self.ridge, path, own.count * v)", "add(self.ridge, path, v)", f"{MERGE}::test_a_merge_is_the_weighted_mean_that_its_page_states"),
    M(MERGING, "        names = sorted(components)\n", "        names = list(components)\n", f"{MERGE}::test_one_component_gives_itself_and_the_order_of_insertion_changes_no_bit"),
    M(MERGING, "                check_factors(\"merge\", components[name], own)\n", "", f"{MERGE}::test_what_cannot_be_merged_is_refused_in_one_line"),
    M(FACTORS, '    require(not extra, function, "factors of the step', '    require(True, function, "factors of the step', f"{MERGE}::test_what_cannot_be_merged_is_refused_in_one_line"),
    M("tangent_jax/components/state.py", "return with_factors([*self.components.values(), *self.composed.values()])", "return [*self.components.values(), *self.composed.values()]", f"{MERGE}::test_a_store_keeps_factors_and_a_removal_takes_them_along"),
    M("tangent_jax/components/disk.py", "require(factors.anchor == here,", "require(True,", f"{MERGE}::test_what_cannot_be_merged_is_refused_in_one_line"),
    M("tangent_jax/components/erasure.py", "if factors.exists():", "if not factors.exists():", f"{SOLVED}::test_a_solved_model_forgets_images_exactly_and_merges_by_its_factors"),
    M("tangent_jax/components/apart.py", "penalty=total / len(left)", "penalty=recipe.penalty", f"{SOLVED}::test_a_solved_model_forgets_images_exactly_and_merges_by_its_factors"),
    # Convolutions, low rank, projected descent, the report
    M("tangent_jax/rules/convolution.py", "jnp.where(value > y, dxs[i], dy)", "jnp.where(value >= y, dxs[i], dy)", "tests/rules/test_rules.py::test_of_equal_values_the_first_passes_its_tangent_on"),
    M("tangent_jax/rules/convolution.py", "None if dx is None else dx * inverse", "dx", "tests/rules/test_rules.py::test_closed_form_equals_jvp_in_f64"),
    M("tangent_jax/models/resnet/forward.py", "config.stride(i) if size == 3 and", "config.stride(i) if size == 1 and", f"{RESNET}::test_logits_are_those_of_pytorch"),
    M("tangent_jax/models/resnet/forward.py", "return relu(x + y, total(dx, dy), config.slope)", "return relu(x + y, total(dx, dy))", f"{RESNET}::test_both_relus_of_a_block_are_leaky"),
    M("tangent_jax/models/parametrize.py", "math.prod(shape[:-1]) ** -0.5 if name", "1.0 if name", f"{LORA}::test_the_first_factor_is_drawn_by_the_number_of_its_inputs"),
    M("tangent_jax/models/subsets.py", 'STATISTICS = ("mean", "var")', 'STATISTICS = ("mean",)', f"{RESNET}::test_the_statistics_are_never_trained_and_always_needed"),
    M("tangent_jax/privacy/norms.py", 'jnp.square(product("bthi,btho->bhio", rows, flowing))', 'jnp.abs(product("bthi,btho->bhio", rows, flowing))', f"{RESNET}::test_closed_form_norms_are_those_of_vmapped_gradients"),
    M("tangent_jax/models/parametrize.py", "            order.reverse()", "            pass", f"{LORA}::test_closed_form_norms_are_those_of_vmapped_gradients"),
    M("tangent_jax/models/parametrize.py", "from_b = None if b.tangent is None else jnp.tensordot(a.primal, b.tangent, 1)", "from_b = None if b.tangent is None else jnp.tensordot(a.primal, b.primal, 1)", f"{LORA}::test_lora_s_tangent_is_the_jvp_of_the_merged_network_at_the_anchor"),
    M("tangent_jax/components/recipe.py", 'kind = kind if self.method == "nlft" else "lora_b"', "pass", f"{LORA}::test_a_recipe_trains_them_and_a_tangent_trains_b_alone"),
    M("tangent_jax/models/vit/leaves.py", 'if path.endswith("/up/kernel"):', 'if path.endswith("/up/bias"):', f"{LORA}::test_at_the_anchor_nothing_changes"),
    M("tangent_jax/train/optimizers.py", "radius * (1 - 1e-6)", "radius * (1 + 1e-6)", "tests/train/test_fit.py::test_projected_descent_in_f32_never_leaves_its_ball"),
    M("tangent_jax/data/archives.py", 'f"labels/{file}{split}.txt") for name', 'f"labels/{file}1.txt") for name', "tests/data/test_sources.py::test_dtd_reads_each_of_its_ten_splits"),
    M("experiments/report/findings.py", "holds = ma - mb > noise if strictly", "holds = ma - mb > 0 if strictly", f"{PAPER}::test_a_difference_within_the_noise_holds_only_where_as_good_is_claimed"),
    M("experiments/report/findings.py", "return job.startswith(self.jobs)", "return job in self.jobs", f"{PAPER}::test_every_table_and_figure_has_a_claim_and_the_paper_s_figures"),
    M("experiments/report/findings.py", '"holds" if all(held) else', '"holds" if any(held) else', f"{PAPER}::test_a_verdict_is_of_all_comparisons"),
    M("experiments/paper.py", "identity(job.command, sets, files,", "identity(job.command, files,", f"{PAPER}::test_other_images_or_weights_under_the_same_names_run_a_command_again"),
    M("experiments/paper.py", "identity(job.command, sets, files,", "identity(job.command, sets,", f"{PAPER}::test_other_images_or_weights_under_the_same_names_run_a_command_again"),
    M("experiments/paper.py", '["identity"] == own:', '["identity"]:', f"{PAPER}::test_the_report_runs_a_command_once_and_says_what_was_not_run"),
    M("tangent_jax/models/cache.py", '"""True where the files of the rows exist,', '"""Whether the files of the rows exist,', f"{WORDS}::test_no_docstring_begins_with_a_question_word"),
    M("tangent_jax/train/log.py", 'int(row["step"]) <= done', 'int(row["step"]) <= done + 1', f"{LOG}::test_a_run_that_is_stopped_twice_goes_on_in_the_same_rows"),
    M("tangent_jax/train/log.py", 'text[: text.rfind("\\n") + 1]', "text", f"{LOG}::test_a_run_that_is_stopped_twice_goes_on_in_the_same_rows"),
    M("tangent_jax/train/log.py", "purge_step=done + 1", "purge_step=done + 100", f"{LOG}::test_a_run_that_is_stopped_twice_goes_on_in_the_same_rows"),
    M("tangent_jax/train/log.py", "self.done + count >= profile[0]", "self.done + count > profile[0]", f"{LOG}::test_the_steps_asked_for_are_traced_and_others_are_not"),
    M("tangent_jax/train/fit.py", "            log.measured(returned)\n", "", f"{LOG}::test_the_rows_of_fit_are_its_steps"),
    M("tangent_jax/train/fit.py", "norms_of(gradient, state.dw, after.dw)", "norms_of(gradient, after.dw, after.dw)", f"{LOG}::test_the_norms_are_of_the_gradient_with_its_penalty_and_of_the_step"),
    M("tangent_jax/privacy/train.py", "norms_of(gradient, state.dw", "norms_of(arguments[0].value, state.dw", f"{LOG}::test_a_private_log_holds_private_values_alone"),
    M("tangent_jax/privacy/log.py", "log.add([row], examples if is_full else None)", "log.add([row], examples)", f"{LOG}::test_a_poisson_run_logs_nothing_that_the_size_of_its_samples_decides"),
    M("experiments/shared/jobs.py", '_min_compile_time_secs", 0.0)', '_min_compile_time_secs", 1e9)', "tests/experiments/test_plan.py::test_a_plan_is_one_line_and_leaves_nothing"),
    M("experiments/shared/plan.py", "size_of(phase.stays) + phase.held", "phase.held", "tests/experiments/test_plan.py::test_the_plan_of_fit_is_of_the_program_that_fit_runs"),
    M("tangent_jax/models/features.py", "        cached = rows_at(", "        cached = found = rows_at(", f"{WORDS}::test_a_name_of_the_table_stands_only_where_the_table_allows_it"),
    M("tangent_jax/data/archives.py", '    """Stanford Cars."""\n', "", f"{WORDS}::test_every_public_function_class_and_method_has_a_docstring"),
    M("tangent_jax/core/__init__.py", "import identity\n", "import identity, identity as identities\n", f"{WORDS}::test_no_name_hides_a_module"),
    # many devices, many processes
    M(PLACEMENT, "return jax.tree.map(np.asarray, multihost_utils.broadcast_one_to_all(value))", "return value",
      f"{DEVICES}::test_processes_hold_one_result"),
    M(PLACEMENT, "    return together(lambda: function() if is_writer() else None)", "    return together(function)",
      f"{DEVICES}::test_a_private_run_has_one_ledger"),
    M(PLACEMENT, "if gathered(np.array(progress.is_asked() or noticed)).any():", "if progress.is_asked() or noticed:",
      f"{DEVICES}::test_a_stop_of_one_process_is_one_of_all_and_both_go_on_to_the_same_bits"),
    M(PLACEMENT, "    if not codes.any():\n        return value", "    if error is None:\n        return value", f"{DEVICES}::test_processes_hold_one_result"),
    M(PLACEMENT, "    return jax.tree.map(lambda leaf: _on(leaf, devices, spec(np.shape(leaf))), tree)", "    return replicated(tree)",
      f"{DEVICES}::test_results_are_those_of_one_device"),
    M("tangent_jax/train/batches.py", "return self._replace(order=order, present=placement.divided(self.present, 1))",
      "return self._replace(order=order, present=np.ones_like(self.present))", f"{DEVICES}::test_results_are_those_of_one_device"),
    M("tangent_jax/models/filling.py", "    if of_all.any():\n", "    if source([]) or True:\n", f"{FEATURES}::test_a_second_call_computes_nothing"),
    M("tangent_jax/models/filling.py", ", wanted[me::processes]", ", wanted[::processes]",
      f"{DEVICES}::test_results_are_those_of_one_device"),
    M("tangent_jax/models/filling.py", "if is_shared or (keeper == me and chunk in missing):", "if keeper == me:",
      f"{DEVICES}::test_processes_hold_one_result"),
    M("tangent_jax/privacy/ledger.py", "        placement.in_writer(self.write)\n", "", f"{DEVICES}::test_a_private_job_that_is_killed_never_takes_a_step_unpaid"),
    M("tangent_jax/train/objective.py", "    placement.check_alike(function, partial(sampled, batches))\n", "", f"{DEVICES}::test_processes_that_do_not_agree_are_refused_and_an_error_of_one_is_raised_in_all"),
    M(NOISES, "bits = placement.agreed(np.frombuffer(os.urandom(8), np.uint32))", "bits = np.frombuffer(os.urandom(8), np.uint32)",
      f"{DEVICES}::test_processes_hold_one_result"),
    M(TRAIN, "entropy = placement.agreed(np.frombuffer(os.urandom(16), np.uint32))", "entropy = np.frombuffer(os.urandom(16), np.uint32)",
      f"{DEVICES}::test_processes_hold_one_result"),
    # a farm of shard models
    M("tangent_jax/components/state.py", 'named = {line["name"]: line}', "named = {}", f"{CLAIMS}::test_a_line_that_names_a_file_no_store_writes_is_refused_by_its_number"),
    M("tangent_jax/components/state.py", "with_factors([*named.values(), *composed])", "[*named.values(), *composed]", f"{CLAIMS}::test_a_line_that_names_a_file_no_store_writes_is_refused_by_its_number"),
    M("tangent_jax/components/state.py", 'receipts = {line["receipt"]: line["receipt_hash"]} if', "receipts = {} if", f"{CLAIMS}::test_a_receipt_no_store_writes_is_refused"),
    M("tangent_jax/components/state.py", "known = is_well_formed(line)", "known = all(map(is_well_formed, entries))", f"{CLAIMS}::test_a_journal_is_read_in_linear_time"),
    M("tangent_jax/components/apart.py", "for name in group if name in self.shards}", "for name in missing}", f"{CLAIMS}::test_a_group_is_trained_whole_whatever_is_missing_and_whoever_trains_it"),
    M("tangent_jax/components/apart.py", "    held.enter_context(claims.claimed(number))\n", "", f"{CLAIMS}::test_who_finds_a_group_claimed_waits_and_takes_what_the_other_one_added"),
    M("tangent_jax/components/apart.py", 'with claims.claimed("stale"):', "if True:", f"{CLAIMS}::test_who_finds_a_group_claimed_waits_and_takes_what_the_other_one_added"),
    M("tangent_jax/components/claims.py", "            self.store.reload()\n", "", f"{CLAIMS}::test_who_finds_a_group_claimed_waits_and_takes_what_the_other_one_added"),
    M("tangent_jax/components/claims.py", '"running" if held else "lost" if process', '"running" if process', f"{CLAIMS}::test_a_shard_is_done_running_lost_or_waiting"),
    M("tangent_jax/components/store.py", " and path.parent != self.root / CLAIMS", "", f"{CLAIMS}::test_a_shard_is_done_running_lost_or_waiting"),
    M("tangent_jax/components/store.py", 'require(not clash, "Store.add_all"', 'require(True, "Store.add_all"', f"{CLAIMS}::test_a_store_that_cannot_be_taken_in_is_refused_in_one_line"),
    M("tangent_jax/components/store.py", "require(not other.state.receipts,", "require(True,", f"{CLAIMS}::test_a_store_that_cannot_be_taken_in_is_refused_in_one_line"),
    M("tangent_jax/components/store.py", "own = other.factors(name) if other.has_factors(name) else None", "own = None", f"{MERGE}::test_a_store_keeps_factors_and_a_removal_takes_them_along"),
    M("tangent_jax/core/files.py", "except OSError as error:\n                do =", "except ZeroDivisionError as error:\n                do =", "tests/core/test_files.py::test_a_file_system_without_locks_is_one_line"),
    M("experiments/shared/farm.py", "(number + group) % workers == index", "group % workers == index", f"{FARM}::test_a_killed_worker_s_shards_are_lost_and_whoever_comes_next_gives_the_bits_of_one_process"),
    M("experiments/shared/farm.py", '.lock("launcher")', '.lock("other")', f"{FARM}::test_of_two_launchers_at_once_the_second_is_refused"),
    M("experiments/shared/farm.py", "    if code == 0:\n", "    if code is not None:\n", f"{FARM}::test_a_worker_hands_on_its_exit_code_and_the_launcher_says_why_and_where"),
    M("experiments/shared/farm.py", "require(workers <= len(groups),", "require(True,", "tests/experiments/test_wrong_flags.py"),
    M("experiments/shared/worker.py", "            self.stop()\n            raise\n", "            raise\n", f"{FARM}::test_a_worker_that_is_preempted_ends_its_process_in_order_first"),
    M("experiments/compose.py", "require(not farm.is_worker(),", "require(True,", f"{FARM}::test_a_search_is_not_left_to_workers"),
    M("tangent_jax/rules/convolution.py", "return jax.lax.platform_dependent(x, w, cpu=over_patches, default=by_xla)", 'return over_patches(x, w) if jax.default_backend() == "cpu" else by_xla(x, w)', f"{LOWERING}::test_the_program_for_cuda_has_cuda_s_convolution_and_a_cpu_s_its_own"),
    M("tangent_jax/rules/multi_head.py", "cuda=cudnn.attend, default=plain", "default=plain", f"{LOWERING}::test_what_the_kernel_does_not_compute_is_never_given_to_it"),
    M("tangent_jax/rules/multi_head.py", "jax.jvp(plain, primals, tangents)", "(plain(*primals), tangents[0])", f"{LOWERING}::test_where_it_is_differentiated_attention_is_formed_and_has_the_closed_form_s_tangent"),
    M("tangent_jax/rules/cudnn.py", '"fmha_scale": e**-0.5', '"fmha_scale": 1.0', f"{LOWERING}::test_the_kernel_is_called_as_jax_itself_calls_it"),
    M("tangent_jax/rules/cudnn.py", "layouts = (0, 2, 1, 3), (0,)", "layouts = (0, 1, 2, 3), (0,)", f"{LOWERING}::test_the_kernel_is_called_as_jax_itself_calls_it"),
    M("tangent_jax/rules/cudnn.py", " and q.shape[-1] % 8 == 0", "", f"{LOWERING}::test_what_the_kernel_does_not_compute_is_never_given_to_it"),
    M("tangent_jax/rules/cudnn.py", "PartitionSpec(*operands[0].sharding.spec[:1])", "PartitionSpec()", f"{LOWERING}::test_each_device_attends_to_its_own_examples"),
    M("experiments/shared/timing.py", "            rows[name] = failed(name, error)\n", "            raise\n", "tests/experiments/test_accelerator.py::test_what_fails_or_has_no_time_is_a_line_and_the_rest_is_measured"),
    # PyTorch
    M("tangent_jax/components/torch_model.py", 'predict.method == "taft"', "True", "tests/components/test_torch.py::test_what_the_module_does_not_know_is_one_line"),
    M("tangent_jax/components/torch_model.py", '"patch_size" in base.settings', "True", "tests/components/test_torch.py::test_what_the_module_does_not_know_is_one_line"),
    M("tangent_jax/components/torch_model.py", "good = name in known and", "good = name not in known or", "tests/components/test_torch.py::test_what_the_module_does_not_know_is_one_line"),
    M("tangent_jax/models/subsets.py", ', "projection/bias")', ")", f"{HEADS}::test_no_subset_trains_the_head_and_the_projection_trains_with_the_blocks"),
    # PEFT
    M("tangent_jax/components/peft.py", 'return config["lora_alpha"] / config["r"]', "return 1.0", f"{PEFT}::test_the_scale_of_an_adapter_is_in_its_step"),
    M("tangent_jax/components/peft.py", "        if a.any():", "        if True:", f"{PEFT}::test_an_adapter_of_some_modules_comes_back_as_it_was"),
    M("tangent_jax/components/peft.py", "a.reshape(-1, model.rank).T", "a.reshape(model.rank, -1)", f"{PEFT}::test_an_adapter_returns_with_every_bit"),
    M("tangent_jax/components/peft.py", 'dw[f"{module}/lora_b"] = scale', 'w[f"{module}/lora_b"] = scale', f"{PEFT}::test_the_tangent_of_an_adapter_is_its_first_order"),
    M("tangent_jax/components/peft.py", "    require(not factors,", "    require(True,", f"{PEFT}::test_factors_of_another_model_are_one_line"),
    M("tangent_jax/components/peft.py", "    for name in UNUSED:", "    for name in ():", f"{PEFT}::test_what_is_no_plain_lora_is_one_line"),
    # frozen heads
    M("tangent_jax/rules/norms.py", "dz_hat = (dz - z_hat * jnp.sum(z_hat * dz, -1, keepdims=True)) * inverse", "dz_hat = dz * inverse", f"{HEADS}::test_the_tangent_is_autodiffs_through_the_normalisation"),
    M("tangent_jax/rules/norms.py", "jnp.where(squares > 0, jax.lax.rsqrt(jnp.where(squares > 0, squares, 1)), 0)", "jax.lax.rsqrt(squares)", "tests/rules/test_rules.py::test_the_tangent_of_a_unit_row_is_orthogonal_to_it_and_of_a_row_of_zeros_it_is_zero"),
    M("tangent_jax/models/frozen_head.py", "self.logit_scale * wide / np.linalg.norm(wide, axis=1, keepdims=True)", "self.logit_scale * wide", f"{HEADS}::test_logits_are_those_of_hugging_face_s_clip"),
    M("tangent_jax/models/frozen_head.py", "[self.classes.index(name) for name in classes]", "[*range(len(classes))]", f"{HEADS}::test_a_head_is_read_by_the_names_of_its_classes"),
    M("tangent_jax/models/frozen_head.py", "listed(self.classes, classes)\n", "listed(classes, classes)\n", f"{HEADS}::test_a_head_of_other_classes_another_width_or_a_second_one_is_one_line"),
    M("tangent_jax/models/frozen_head.py", "width = embedding_width(self.base)", "width = self.shape[1]", f"{HEADS}::test_a_head_of_other_classes_another_width_or_a_second_one_is_one_line"),
    M("tangent_jax/models/frozen_head.py", "return {renamed(path, HEAD, PROJECTION): leaf", "return {path: leaf", f"{HEADS}::test_no_subset_trains_the_head_and_the_projection_trains_with_the_blocks"),
    M("tangent_jax/models/subsets.py", 'FROZEN = ("head/embeddings", ', 'FROZEN = (', f"{HEADS}::test_no_subset_trains_the_head_and_the_projection_trains_with_the_blocks"),
    # Functions of other frameworks
    M("tangent_jax/models/functions.py", "return jax.vmap(alone)(x)", "flat = flat\n        for stage in run:\n            x = self.own_functions[stage](own, x)\n        return x", f"{FUNCTIONS}::test_an_example_is_alone_whatever_the_code_says"),
    M("tangent_jax/models/functions.py", "{**dict.fromkeys(stage.read, s), **owner}", "{**owner, **dict.fromkeys(stage.read, s)}", f"{FUNCTIONS}::test_the_tangent_is_that_of_jvp_and_features_give_what_the_inputs_give"),
    M("tangent_jax/models/functions.py", 'return {"programs": programs, ', "return {", f"{FUNCTIONS}::test_settings_are_programs_and_json_and_cached_rows_follow_them"),
    M("tangent_jax/models/functions.py", "enumerate(map(partial, functions))", "enumerate(functions)", f"{FUNCTIONS}::test_a_wrong_use_is_one_line"),
    M("tangent_jax/models/functions.py", "require(not drawn,", "require(True,", f"{FUNCTIONS}::test_a_wrong_use_is_one_line"),
    M("tangent_jax/models/functions.py", "require(not unread,", "require(True,", f"{FUNCTIONS}::test_a_wrong_use_is_one_line"),
    M("tangent_jax/models/functions.py", "    check_alone(functions, w, inputs, preprocessing)\n", "", f"{FUNCTIONS}::test_an_example_is_alone_whatever_the_code_says"),
    M("tangent_jax/models/functions.py", 'return name if name.startswith("head/") else f"head/{name}"', "return name", f"{FUNCTIONS}::test_leaves_that_the_head_alone_reads_are_its_own_and_leave_under_their_own_names"),
    M("tangent_jax/models/protocol.py", 'and not is_a(x.dtype, "inexact"):', "and False:", f"{FUNCTIONS}::test_token_ids_are_never_cast_to_floats"),
    M("tangent_jax/models/protocol.py", "    if isinstance(inputs, Arrays):\n        if stage == 0:\n            return inputs.checked(x)\n    elif x.dtype", "    if x.dtype", f"{FUNCTIONS}::test_uint8_and_int8_ids_are_neither_images_nor_packed_rows"),
    M("tangent_jax/models/features.py", 'good = good and (dtype.kind == "f" or', "good = good and (True or", f"{FUNCTIONS}::test_uint8_and_int8_ids_are_neither_images_nor_packed_rows"),
    M("tangent_jax/models/features.py", "groups = self.targets if is_class else rank", "groups = self.targets", f"{FUNCTIONS}::test_it_is_solved_without_factors_to_the_optimum_of_the_kernel"),
    M("tangent_jax/models/predict.py", 'require(dual is not None, function,', "require(True, function,", f"{FUNCTIONS}::test_a_head_is_drawn_on_features_and_never_in_the_place_of_ones_own"),
    M("tangent_jax/models/parametrize.py", 'self.base.stage_of(f"{module}/kernel" if name in ("lora_a", "lora_b") else path)', "self.base.stage_of(path)", f"{FUNCTIONS}::test_a_head_is_drawn_on_features_and_never_in_the_place_of_ones_own"),
    M("tangent_jax/solver/problem.py", " and self.predict.model.dual is not None", "", f"{FUNCTIONS}::test_it_is_solved_without_factors_to_the_optimum_of_the_kernel"),
    M("tangent_jax/solver/jacobian.py", "back(unit)[0])(jnp.eye", "back(2 * unit)[0])(jnp.eye", f"{FUNCTIONS}::test_a_dual_that_is_given_serves_what_needs_a_closed_form"),
    M("tangent_jax/components/exports.py", "        check_described(model, paths[0])\n", "        pass\n", f"{FUNCTIONS}::test_it_is_fitted_composed_stored_exported_and_told_from_other_programs"),
    # heads of their own
    M("tangent_jax/models/heads.py", ' * (predict.output == "total")', "", "tests/components/test_heads.py::test_a_component_of_few_classes_is_one_of_more"),
    M("tangent_jax/models/heads.py", "        silent[..., chosen] = leaf\n", "        silent[..., : len(chosen)] = leaf\n", "tests/components/test_heads.py::test_a_component_of_few_classes_is_one_of_more"),
    M("tangent_jax/models/heads.py", "index[columns(classes, own)] = np.arange(len(own))", "index[: len(own)] = np.arange(len(own))", "tests/components/test_heads.py::test_a_component_of_a_named_head_has_the_classes_that_it_has_images_of"),
    M("tangent_jax/models/anchor.py", "hashlib.sha256(name.encode())", "hashlib.sha256(bytes(len(name)))", "tests/components/test_heads.py::test_a_class_is_drawn_by_its_name_whatever_other_classes_there_are"),
    M("tangent_jax/components/factors.py", "less, count = len(own) / len(classes), len(classes)", "less, count = 1.0, len(classes)", "tests/components/test_heads.py::test_trained_heads_join_to_the_optimum_on_all_images"),
    M("tangent_jax/components/heads.py", " or name in same_classes", " or True", "tests/components/test_heads.py::test_one_name_in_two_data_sets_is_refused_unless_it_is_said_to_mean_the_same"),
    M("tangent_jax/components/heads.py", "        check_head(predict, classes, name, origin)\n", "        pass\n", "tests/components/test_heads.py::test_what_cannot_be_joined_is_refused_in_one_line"),
    M("tangent_jax/components/heads.py", "isinstance(loss, SquareLoss)", "True", "tests/components/test_heads.py::test_what_cannot_be_joined_is_refused_in_one_line"),
    M("tangent_jax/components/provenance.py", " or len({o.classes for o in origins if o.classes}) > 1", "", "tests/components/test_heads.py::test_heads_of_one_size_and_other_classes_are_no_one_head"),
    M("tangent_jax/components/store.py", "if other.classes == provenance.classes:", "if False:", "tests/components/test_heads.py::test_what_cannot_be_joined_is_refused_in_one_line"),
    M("tangent_jax/components/removal.py", "body if have_own_heads(origins) else dict", "dict", "tests/components/test_heads.py::test_components_of_own_heads_compose_their_bodies"),
    M("tangent_jax/components/apart.py", "        classes = classes_in(left, origin.classes)\n", "        classes = origin.classes\n", "tests/components/test_heads.py::test_a_class_of_which_no_image_is_left_leaves_the_head"),
    M("experiments/shared/joint.py", "0.5 * p * own * jnp", "0.5 * p * jnp", "tests/experiments/test_joint.py::test_the_loss_of_an_example_is_that_of_its_own_outputs"),
    M("experiments/shared/joint.py", " * outputs.shape[-1] / count", "", "tests/experiments/test_joint.py::test_the_loss_of_an_example_is_that_of_its_own_outputs"),
    # data that change
    M("tangent_jax/data/hugging_face.py", 'f"{own} of {image}"', 'f"{own}"', "tests/data/test_identifiers.py::test_the_index_keeps_the_place_of_an_image_and_not_its_name"),
    M("tangent_jax/components/provenance.py", 'fields["targets"] = fingerprint(np.ascontiguousarray(features.targets).tobytes())', 'fields["targets"] = ""', "tests/components/test_heads.py::test_other_labels_or_other_class_names_make_a_component_stale"),
    M("tangent_jax/components/apart.py", "    left = relabelled(left, dataset.classes, origin.classes) if origin.classes else left\n", "", "tests/components/test_heads.py::test_a_class_that_was_added_to_the_data_leaves_the_labels_of_a_retrained_component"),
    M("tangent_jax/models/vit/weights.py", "known = rotary or not re.search", "known = True or not re.search", "tests/models/test_modern.py::test_timm_s_other_rotary_models_are_refused_by_the_architecture_that_config_json_says"),
]  # fmt: skip


def survives(mutation: Mutation, copy: Path) -> str | None:
    """Why a mutation is not caught, or None where its test fails."""
    path = copy / mutation.file
    whole = path.read_text()
    if whole.count(mutation.old) != 1:
        return f"what it changes stands there {whole.count(mutation.old)} times"
    path.write_text(whole.replace(mutation.old, mutation.new))
    try:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", mutation.test]
        run = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=600, check=False)
    except subprocess.TimeoutExpired:
        return None
    finally:
        path.write_text(whole)
    return {0: "its test passes", 1: None}.get(run.returncode, f"its test does not run: {run.stdout[-300:]}")


def main() -> int:
    words = sys.argv[1:]
    chosen = [m for m in MUTATIONS if all(word in " ".join(m) for word in words)]
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache/jax"))
    skipped = shutil.ignore_patterns(".git", ".venv", ".pytest_cache", "out", "__pycache__", "*.egg-info")
    survivors, copies = 0, Queue()
    with tempfile.TemporaryDirectory() as folder:
        for i in range(WORKERS):
            copies.put(Path(shutil.copytree(ROOT, Path(folder) / f"{i}", ignore=skipped)))

        def attempt(mutation: Mutation) -> str | None:
            copy = copies.get()
            try:
                return survives(mutation, copy)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(WORKERS) as pool:
            for number, (mutation, why) in enumerate(zip(chosen, pool.map(attempt, chosen), strict=True), 1):
                survivors += why is not None
                what = f"{mutation.file}: {mutation.new.strip().splitlines()[0] if mutation.new.strip() else 'deleted'}"
                print(f"{number}/{len(chosen)} {'SURVIVED, ' + why if why else 'caught'}: {what[:110]}", flush=True)
    print(f"{len(chosen)} mutations, {survivors} survived")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
