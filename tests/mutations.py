"""Breaks the code on purpose where no tool can, and sees the test that must catch it fail: `make mutations`.

At most sixty rows: the order of payment and step, the scale and the freshness of noise, a trace that a removal forgets,
an order of sums, an intent before an erasure. `make mutate` (mutate.py) makes the mutants that a tool can make.

Each row is (file, definition, fragment, what it becomes, the test). A definition is a function, a class or a variable
by its qualified name, `Store.add_all` or `fit.step`. The fragment stands in it once; spaces and line breaks do not
count. test_mutations.py holds the rows against the code. A mutation whose test stays green has survived: exit code 1.
Mutations are applied in temporary copies.

    python tests/mutations.py [words that a row must contain]
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 2


class Mutation(NamedTuple):
    """One break."""

    file: str
    definition: str
    old: str
    new: str
    test: str


MUTATIONS = [
    # A step is paid before it is taken, and the payment is on the disk.
    Mutation(
        "tangent_jax/privacy/train.py",
        "fit_private",
        "account.pay(step + 1)",
        "pass",
        "tests/privacy/test_train.py::test_every_step_is_paid_before_it_is_taken_and_what_is_lost_stays_paid",
    ),
    Mutation(
        "tangent_jax/io/ledger.py",
        "Account.write",
        "self.check_lock()",
        "",
        "tests/privacy/test_ledger.py::test_a_lock_deleted_during_a_run_stops_it_before_it_pays",
    ),
    Mutation(
        "tangent_jax/io/ledger.py",
        "Account.pay",
        "hosts.in_writer(self.write)",
        "",
        "tests/test_devices.py::test_a_private_job_that_is_killed_never_takes_a_step_unpaid",
    ),
    Mutation(
        "tangent_jax/io/ledger.py",
        "put_back",
        "replace_whole(path, before)",
        "path.write_bytes(before)",
        "tests/privacy/test_ledger.py::test_a_payment_that_is_taken_back_is_taken_back_on_the_disk",
    ),
    Mutation(
        "tangent_jax/io/ledger.py",
        "put_back",
        "synchronize(path.parent)",
        "",
        "tests/privacy/test_ledger.py::test_a_payment_that_is_taken_back_is_taken_back_on_the_disk",
    ),
    Mutation(
        "tangent_jax/io/journal.py",
        "Journal.append",
        "os.fsync(file.fileno())",
        "",
        "tests/io/test_journal.py::test_a_line_is_on_the_disk_before_it_is_counted_and_both_before_append_returns",
    ),
    Mutation(
        "tangent_jax/io/journal.py",
        "Journal.load",
        ", self.count(max(len(lines) - 1, 0))",
        "",
        "tests/io/test_journal.py::test_a_line_cut_at_any_byte_is_left_out_and_the_next_one_takes_its_place",
    ),
    Mutation(
        "tangent_jax/io/journal.py",
        "Journal.append",
        "self.cut()\n            raise",
        "raise",
        "tests/io/test_journal.py::test_a_full_disk_leaves_nothing_half_written",
    ),
    Mutation(
        "tangent_jax/io/files.py",
        "replace_whole",
        "synchronize(partial)",
        "",
        "tests/io/test_files.py::test_a_file_is_on_the_disk_before_it_has_its_name_and_its_name_before_the_call_returns",
    ),
    Mutation(
        "tangent_jax/io/files.py",
        "write_whole_folder",
        "synchronize(part)",
        "pass",
        "tests/io/test_files.py::test_a_folder_is_on_the_disk_before_it_has_its_name",
    ),
    Mutation(
        "tangent_jax/features/row_store.py",
        "write_at",
        "os.fsync(file.fileno())",
        "pass",
        "tests/features/test_row_store.py::test_a_chunk_is_on_the_disk_before_its_line",
    ),
    # The scale, the freshness and the divisor of noise.
    Mutation(
        "tangent_jax/privacy/transformation.py",
        "private_mean",
        "mechanism.noise_multiplier",
        "mechanism.noise_multiplier / 2",
        "tests/audit/test_audit.py::test_the_noise_of_a_run_is_as_its_ledger_says",
    ),
    Mutation(
        "tangent_jax/privacy/train.py",
        "fit_private",
        "mechanism.expected_size(len(units))",
        "len(units)",
        "tests/audit/test_audit.py::test_a_poisson_gradient_is_on_average_the_whole_data_s",
    ),
    Mutation(
        "tangent_jax/privacy/units.py",
        "sample",
        "placement.agree(np.frombuffer(os.urandom(16), np.uint32)) if seed is None else [seed, step]",
        "[seed or 0, step]",
        "tests/audit/test_audit.py::test_poisson_coins_are_fresh_in_every_run_and_a_seed_repeats_them",
    ),
    Mutation(
        "tangent_jax/privacy/noise.py",
        "noisy_mean.noisy",
        "jax.random.fold_in(key, i)",
        "key",
        "tests/audit/test_audit.py::test_the_noise_of_a_run_is_as_its_ledger_says",
    ),
    Mutation(
        "tangent_jax/privacy/noise.py",
        "noisy_mean.noisy",
        "(leaf + jnp.asarray(scale * noise, leaf.dtype)) / count",
        "leaf / count + jnp.asarray(scale * noise, leaf.dtype) / count**2",
        "tests/privacy/test_train.py::test_noise_is_sigma_c_over_b_in_every_leaf_and_two_thirds_or_three_halves_of_it_are_rejected",
    ),
    Mutation(
        "tangent_jax/privacy/noise.py",
        "secret_key",
        "np.frombuffer(os.urandom(8), np.uint32)",
        "np.array([7, 7], np.uint32)",
        "tests/audit/test_audit.py::test_the_noise_of_a_run_is_as_its_ledger_says",
    ),
    Mutation(
        "tangent_jax/privacy/discrete.py",
        "step_key",
        "urandom(32), np",
        "urandom(8) * 4, np",
        "tests/privacy/test_discrete.py::test_noise_differs_between_numbers_steps_and_keys",
    ),
    Mutation(
        "tangent_jax/privacy/discrete.py",
        "step_key",
        "SeedSequence([seed, step])",
        "SeedSequence([seed])",
        "tests/privacy/test_discrete.py::test_noise_differs_between_numbers_steps_and_keys",
    ),
    Mutation(
        "tangent_jax/privacy/train.py",
        "clip_all",
        "sensitivity_of(mechanism, dw, present[0].size)",
        "mechanism.clip_norm",
        "tests/privacy/test_discrete.py::test_the_trainer_sums_whole_numbers_and_its_sensitivity_is_the_grids",
    ),
    Mutation(
        "tangent_jax/privacy/units.py",
        "sample",
        "entropy = placement.agree(np.frombuffer(os.urandom(16), np.uint32))",
        "entropy = np.frombuffer(os.urandom(16), np.uint32)",
        "tests/test_devices.py::test_processes_hold_one_result",
    ),
    Mutation(
        "tangent_jax/privacy/mechanism.py",
        "Spent.compute_epsilon",
        "dataclasses.replace(self.mechanism, steps=self.steps_paid)",
        "self.mechanism",
        "tests/privacy/test_accounting.py::test_what_several_runs_cost_together_is_dp_accountings_own",
    ),
    Mutation(
        "tangent_jax/privacy/train.py",
        "fit_private",
        "total, expected, key",
        "total, float((total.norms > 0).sum()), key",
        "tests/privacy/test_train.py::test_a_sample_is_divided_by_a_public_constant_never_by_its_size",
    ),
    # A removal forgets no trace, and follows no stranger's word.
    Mutation(
        "tangent_jax/store/erasure.py",
        "run_in",
        'yield Trace(f"{run}: checkpoints", partial(delete_checkpoints, run))',
        "pass",
        "tests/store/test_removal.py::test_no_file_holds_a_removed_images_rows_and_the_others_stay",
    ),
    Mutation(
        "tangent_jax/store/erasure.py",
        "run_in",
        'yield Trace(f"{steps}: the steps that its run released", partial(shutil.rmtree, steps))',
        "pass",
        "tests/store/test_removal.py::test_no_file_holds_a_removed_images_rows_and_the_others_stay",
    ),
    Mutation(
        "tangent_jax/features/row_store.py",
        "write_at",
        "file.write(content)",
        "pass",
        "tests/store/test_removal.py::test_no_file_holds_a_removed_images_rows_and_the_others_stay",
    ),
    Mutation(
        "tangent_jax/features/row_store.py",
        "erase",
        "write_examples(folder, names)",
        "pass",
        "tests/features/test_row_store.py::test_a_reader_is_told_of_an_erasure_at_any_moment_and_other_rows_stay",
    ),
    Mutation(
        "tangent_jax/features/row_store.py",
        "OpenRows.__getitem__",
        "or not self.base[row].any()",
        "",
        "tests/features/test_row_store.py::test_rows_that_were_erased_and_listed_again_are_not_read_as_zeros",
    ),
    Mutation(
        "tangent_jax/store/state.py",
        "State.apply",
        "if not x.is_part_of(line.removed, line.forgotten)",
        "if False",
        "tests/experiments/test_record.py::test_a_removal_that_was_killed_is_stopped_until_it_is_repeated",
    ),
    Mutation(
        "tangent_jax/store/state.py",
        "State.exports_of",
        "own.export in held or ",
        "",
        "tests/store/test_removal.py::test_an_export_is_journaled_before_it_is_written",
    ),
    Mutation(
        "tangent_jax/store/erasure.py",
        "own_images",
        "seen | {*unseen}",
        "seen",
        "tests/store/test_removal.py::test_a_removed_owners_images_return_to_no_cache_when_compose_runs_again",
    ),
    Mutation(
        "tangent_jax/store/store.py",
        "Store.put",
        "self.check_forgotten(provenance)",
        "",
        "tests/store/test_removal.py::test_a_component_of_removed_examples_is_not_added_again",
    ),
    Mutation(
        "tangent_jax/store/apart.py",
        "fill",
        "rows=hosts.from_writer(lambda: shards.rows_left(store))",
        "rows=shards.rows",
        "tests/store/test_removal.py::test_composing_after_a_removal_does_not_bring_removed_images_back",
    ),
    Mutation(
        "tangent_jax/store/erasure.py",
        "find_traces",
        "if name in made_here else ()",
        "",
        "tests/store/test_foreign.py::test_a_component_of_another_machine_deletes_nothing_and_opens_nothing",
    ),
    Mutation(
        "tangent_jax/store/provenance.py",
        "Provenance.from_metadata",
        'parse_json(text, where), "is_own": is_own}',
        "parse_json(text, where)}",
        "tests/store/test_foreign.py::test_a_seal_is_of_the_whole_text_and_of_one_key",
    ),
    Mutation(
        "tangent_jax/store/removal.py",
        "commit",
        "with store.using(change=True):\n        check_fits(store, plan)",
        "erase(store, plan, cache)\n    with store.using(change=True):\n        check_fits(store, plan)",
        "tests/store/test_requests.py::test_a_store_that_changes_before_the_commit_keeps_all_traces",
    ),
    # What stays of removed images tells nothing to who lacks the store's key, and is found by who has it.
    Mutation(
        "tangent_jax/store/keys.py",
        "Key.hide",
        'hmac.digest(self.secret, text.encode(errors="surrogatepass"), "sha256").hex()',
        'hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()',
        "tests/store/test_hidden.py::test_no_byte_that_a_removal_leaves_tells_of_an_image_to_who_lacks_the_key",
    ),
    Mutation(
        "tangent_jax/store/keys.py",
        "KeyRing.forms",
        "for key in self.keys}",
        "for key in self.keys[:1]}",
        "tests/store/test_hidden.py::test_accounts_under_different_keys_add_up",
    ),
    Mutation(
        "tangent_jax/store/keys.py",
        "KeyRing.forms",
        "| {form_of_04(text)}",
        "",
        "tests/store/test_hidden.py::test_a_store_of_version_04_is_read_without_a_change",
    ),
    Mutation(
        "tangent_jax/store/keys.py",
        "write_keys",
        ", private=True",
        "",
        "tests/store/test_keys.py::test_keys_survive_their_file_which_its_user_alone_reads",
    ),
    Mutation(
        "tangent_jax/store/copies.py",
        "place",
        "0o600 if path.name in PRIVATE else 0o666",
        "0o666",
        "tests/store/test_hidden.py::test_a_copy_at_a_url_brings_the_key_which_its_user_alone_reads",
    ),
    Mutation(
        "tangent_jax/store/copies.py",
        "push",
        "for name in MARKS if",
        "for name in MARKS if name != KEYS and",
        "tests/store/test_hidden.py::test_a_copy_at_a_url_brings_the_key_which_its_user_alone_reads",
    ),
    Mutation(
        "tangent_jax/store/store.py",
        "Store.take_account",
        "write_keys(self.root / KEYS, ring)",
        "pass",
        "tests/store/test_hidden.py::test_accounts_under_different_keys_add_up",
    ),
    Mutation(
        "tangent_jax/store/disk.py",
        "Disk.using",
        "_ = self.ring",
        "pass",
        "tests/store/test_hidden.py::test_a_store_without_its_key_is_read_and_told_and_does_not_change",
    ),
    Mutation(
        "tangent_jax/store/removal.py",
        "commit",
        "key.hide_all(map(normal_name, plan.asked))",
        "tuple(map(normal_name, plan.asked))",
        "tests/store/test_hidden.py::test_no_byte_that_a_removal_leaves_tells_of_an_image_to_who_lacks_the_key",
    ),
    Mutation(
        "tangent_jax/store/state.py",
        "State.accounts_shown",
        "key.hide_all(origin.protected_units())",
        "tuple(origin.protected_units())",
        "tests/store/test_hidden.py::test_components_that_were_discarded_leave_no_plain_unit_in_the_account",
    ),
    Mutation(
        "tangent_jax/store/plans.py",
        "Row.owner",
        "or self.name not in several",
        "or True",
        "tests/store/test_requests.py::test_an_owners_lines_do_not_take_the_images_of_another_that_have_the_same_names",
    ),
    # The order of sums.
    Mutation(
        "tangent_jax/composition/sums.py",
        "sum_trees",
        "names = sorted",
        "names = list",
        "tests/store/test_sums.py::test_removal_is_bitwise_what_had_never_been_there",
    ),
    Mutation(
        "tangent_jax/composition/sums.py",
        "scale",
        "(leaf if leaf.dtype == wide else leaf.astype(wide))",
        "leaf if coefficient == 1 else leaf",
        "tests/store/test_sums.py::test_a_coefficient_of_one_adds_to_a_copy_never_to_the_callers_component",
    ),
    Mutation(
        "tangent_jax/composition/merge.py",
        "Merger.__init__",
        "names = sorted",
        "names = list",
        "tests/store/test_merge.py::test_one_component_gives_itself_and_the_order_of_insertion_changes_no_bit",
    ),
    Mutation(
        "examples/engines/fold.py",
        "Parts.finish",
        "sorted(accumulator, key=sorted)",
        "accumulator",
        "tests/test_engines.py::test_parts_have_the_same_bits_whoever_computed_them_and_however_often",
    ),
    # Hashes and receipts.
    Mutation(
        "tangent_jax/store/disk.py",
        "Disk.read_checked",
        "or not is_whole(path, entry)",
        "",
        "tests/store/test_removal.py::test_every_read_checks_its_hash",
    ),
    Mutation(
        "tangent_jax/store/files.py",
        "read_component",
        'metadata.get("binding") != binding(trees.fingerprint(dw), metadata)',
        "False",
        "tests/store/test_removal.py::test_a_step_and_what_is_said_of_it_belong_together",
    ),
    Mutation(
        "tangent_jax/store/store.py",
        "Store.verify_receipt",
        "if unchanged and",
        "if False and",
        "tests/store/test_removal.py::test_a_receipt_whose_sum_is_not_the_survivors_is_told",
    ),
    # Certificates.
    Mutation(
        "tangent_jax/solver/optimum.py",
        "Solver.row",
        'if more["exact"] else "estimate"',
        "",
        "tests/solver/test_optimum.py::test_only_a_pass_with_an_exact_gradient_has_a_certificate_and_it_bounds_the_distance",
    ),
    Mutation(
        "tangent_jax/solver/problem.py",
        "Problem.total_penalty",
        "* len(self.batches)",
        "* float(self.example_weights.sum())",
        "tests/solver/test_optimum.py::test_example_weights_count_examples_and_leave_the_penalty_as_it_was",
    ),
    # What is measured on which images.
    Mutation(
        "tangent_jax/train/features.py",
        "Features.hold_out",
        "self.take(np.flatnonzero(~held))",
        "self",
        "tests/features/test_extract.py::test_what_is_held_out_of_train_is_not_in_it",
    ),
    Mutation(
        "experiments/uncertainty.py",
        "ensemble",
        "train.hold_out()[0] if F.held_out else train",
        "train",
        "tests/experiments/test_honesty.py::test_an_ensemble_trains_on_no_image_that_it_is_measured_on",
    ),
    # Jobs of several processes.
    Mutation(
        "tangent_jax/core/placement.py",
        "agree",
        "jax.tree.map(np.asarray, multihost_utils.broadcast_one_to_all(value))",
        "value",
        "tests/test_devices.py::test_processes_hold_one_result",
    ),
    Mutation(
        "tangent_jax/io/progress.py",
        "agree_to_stop",
        "gather(np.array(is_asked() or noticed)).any()",
        "is_asked() or noticed",
        "tests/test_devices.py::test_a_stop_of_one_process_is_one_of_all_and_both_go_on_to_the_same_bits",
    ),
]


def definitions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, int, int]]:
    """Qualified name, first and last line of every function, class and variable of a module or a class."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            yield f"{within}{node.name}", first, node.end_lineno or first
            yield from definitions(node, f"{within}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(tree, ast.Module | ast.ClassDef):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield f"{within}{ast.unparse(target)}", node.lineno, node.end_lineno or node.lineno
        elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            yield from definitions(node, within)


def lines_of(text: str) -> dict[str, list[tuple[int, int]]]:
    """The first and last lines of the definitions in a file, by name."""
    lines: dict[str, list[tuple[int, int]]] = {}
    for name, first, last in definitions(ast.parse(text)):
        lines.setdefault(name, []).append((first, last))
    return lines


def places(mutation: Mutation, text: str) -> list[tuple[int, int]]:
    """Where its fragment begins and ends in the text of its file: each place where it stands in the definition."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    spans = [(0, len(text))]
    if mutation.definition:
        spans = [(starts[first - 1], starts[last]) for first, last in lines_of(text).get(mutation.definition, ())]
    pattern = r"\s*".join(map(re.escape, re.findall(r"\w+|[^\w\s]", mutation.old)))
    whole = re.compile(r"\b" * mutation.old[0].isidentifier() + pattern + r"\b" * mutation.old[-1].isidentifier())
    return [match.span() for start, end in spans for match in whole.finditer(text, start, end)]


def mutated(mutation: Mutation, text: str) -> str:
    """The text of its file with the fragment replaced, or ValueError where it does not stand there once."""
    found = places(mutation, text)
    if len(found) != 1:
        raise ValueError(f"its fragment stands {len(found)} times in {mutation.definition or 'its file'}")
    ((start, end),) = found
    return text[:start] + mutation.new.strip() + text[end:]


def survives(mutation: Mutation, copy: Path) -> str | None:
    """Why a mutation is not caught, or None where its test fails."""
    path = copy / mutation.file
    whole = path.read_text()
    try:
        path.write_text(mutated(mutation, whole))
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "", "-p", "no:cacheprovider", mutation.test]
        run = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=600, check=False)
    except subprocess.TimeoutExpired:
        return None
    except ValueError as error:
        return str(error)
    finally:
        path.write_text(whole)
    return {0: "its test passes", 1: None}.get(run.returncode, f"its test does not run: {run.stdout[-300:]}")


def main() -> int:
    words = sys.argv[1:]
    chosen = [m for m in MUTATIONS if all(word in " ".join(m) for word in words)]
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache/jax"))
    skipped = shutil.ignore_patterns(".git", ".venv", ".pytest_cache", "build", "out", "__pycache__", "*.egg-info")
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
