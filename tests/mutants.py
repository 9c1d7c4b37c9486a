"""Change one line at a time, and see whether a test notices. Run by hand: ``python tests/mutants.py``.

Each mutant is a small change of one file that makes the program wrong, with the tests that should fail because of it.
The tree is copied to a temporary folder; there one mutant after the other is applied, its tests run, and the file is
put back. A mutant that no test notices has survived, and a test is missing. The tests are run on the unchanged copy
first, since a test that fails anyway notices nothing.

``python tests/mutants.py --list`` names the mutants; names as arguments run only these; ``--out FILE`` also writes the
outcome as a table.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 600
"""A mutant that keeps its tests busy for longer has been noticed."""


class Mutant(NamedTuple):
    """One wrong line."""

    name: str
    file: str
    """Under src/woodlot."""
    old: str
    """Must stand in the file exactly once."""
    new: str
    tests: tuple[str, ...]
    """What pytest is given; any that fails has noticed."""


def _splits(which: str) -> tuple[str, ...]:
    """Tests of splits against the naive twin: few, for a changed kernel is compiled again with all that it needs."""
    return ("tests/trees/test_splits.py", "-k", which)


KERNELS = [
    Mutant(
        "two classes: rows on the right of a group",
        "trees/kernels/two_classes.py",
        "\n        if counted and (left < rules.min_leaf or n - left < rules.min_leaf):",
        "\n        if counted and (left < rules.min_leaf or n - left <= rules.min_leaf):",
        _splits("exactly_the_least and two"),
    ),
    Mutant(
        "two classes: rows on the right inside a group",
        "trees/kernels/two_classes.py",
        "\n            if counted and (left < rules.min_leaf or n - left < rules.min_leaf):",
        "\n            if counted and (left < rules.min_leaf or n - left <= rules.min_leaf):",
        _splits("exactly_the_least and two"),
    ),
    Mutant(
        "two classes: rows on the left inside a group",
        "trees/kernels/two_classes.py",
        "\n            if counted and (left < rules.min_leaf or n",
        "\n            if counted and (left <= rules.min_leaf or n",
        _splits("exactly_the_least and two"),
    ),
    Mutant(
        "two classes: rows on the right of a sorted cut",
        "trees/kernels/two_classes.py",
        "and n - left >= rules.min_leaf",
        "and n - left > rules.min_leaf",
        _splits("exactly_the_least and two"),
    ),
    Mutant(
        "two classes: the last of equal cuts",
        "trees/kernels/two_classes.py",
        "if score > best or (score == best and cut < 0 and not strict):",
        "if score >= best:",
        _splits("test_small_nodes"),
    ),
    Mutant(
        "two classes: any of equal cuts inside groups",
        "trees/kernels/two_classes.py",
        "(cut < 0 or c < cut)",
        "cut < 0",
        _splits("lowest_of_equal_cuts and two"),
    ),
    Mutant(
        "many classes: squares on the right",
        "trees/kernels/many_classes.py",
        "sr -= d * (2 * rk - d)",
        "sr -= d * (2 * rk + d)",
        _splits("test_medium_and_large_nodes and many and continuous"),
    ),
    Mutant(
        "many classes: weight on the right",
        "trees/kernels/many_classes.py",
        "                and W - w >= rules.min_weight\n            ):\n                if rules.entropy:",
        "                and W - w > rules.min_weight\n            ):\n                if rules.entropy:",
        _splits("exactly_the_least and many"),
    ),
    Mutant(
        "targets: rows on the right inside a group",
        "trees/kernels/targets.py",
        "\n            if counted and (rows_left < rules.min_leaf or n - rows_left < rules.min_leaf):",
        "\n            if counted and (rows_left < rules.min_leaf or n - rows_left <= rules.min_leaf):",
        _splits("exactly_the_least and targets"),
    ),
    Mutant(
        "heavy weights: rows on the right",
        "trees/kernels/wide.py",
        "n - left < rules.min_leaf",
        "n - left <= rules.min_leaf",
        _splits("exactly_the_least and wide"),
    ),
    Mutant(
        "winner: missing values count as the value above",
        "trees/kernels/cut.py",
        "beyond if under or c == missing else c",
        "beyond if under else c",
        _splits("missing_ones_on_the_other"),
    ),
    Mutant(
        "winner: missing values of later rows on a tie",
        "trees/kernels/cut.py",
        "missing_left[node] = left - s > e - left",
        "missing_left[node] = left - s >= e - left",
        _splits("test_small_nodes"),
    ),
    Mutant(
        "walk: the cut's own code goes right",
        "trees/kernels/walk.py",
        "at[row] += (word >> JUMP_BIT) if code >= cut else 1",
        "at[row] += (word >> JUMP_BIT) if code > cut else 1",
        ("tests/trees/test_predict.py", "-k", "naive_walk"),
    ),
    Mutant(
        "walk: a set one byte longer",
        "trees/kernels/walk.py",
        "if at >= stop:",
        "if at > stop:",
        ("tests/trees/test_predict.py", "-k", "naive_walk or more_categories"),
    ),
    Mutant(
        "both branches: the wrong share",
        "trees/kernels/settle.py",
        "weights[depth] = weight * share_right[i]",
        "weights[depth] = weight * share_left[i]",
        ("tests/estimators/test_missing_parties.py", "-k", "follows_both"),
    ),
    Mutant(
        "sample vectors: the bit beside it",
        "trees/kernels/samples.py",
        "|= U8(1) << U8(rows[i] & 7)",
        "|= U8(1) << U8(~rows[i] & 7)",
        ("tests/protocols/test_revocable_samples.py",),
    ),
    Mutant(
        "extra-trees: rows of the right side",
        "trees/kernels/extra.py",
        "nl < min_leaf or nr < min_leaf",
        "nl < min_leaf or nr <= min_leaf",
        ("tests/trees/test_extra.py", "-k", "slow_twin"),
    ),
    Mutant(
        "lossless: rows of the right side",
        "trees/kernels/cells.py",
        "if r < min_leaf or R - r < min_leaf:",
        "if r < min_leaf or R - r <= min_leaf:",
        ("tests/trees/test_cells.py", "-k", "best_of_all"),
    ),
]

PROTOCOLS = [
    Mutant(
        "weights: a row of little weight falls out",
        "trees/sampling.py",
        "return np.maximum(np.rint(weights * factor), weights > 0).astype(np.int64)",
        "return np.rint(weights * factor).astype(np.int64)",
        ("tests/trees/test_sampling.py", "-k", "weights_become or too_large or balanced"),
    ),
    Mutant(
        "plan: a fraction of rows rounded down",
        "protocols/core/forest_plan.py",
        "leaf if isinstance(leaf, int) else ceil(leaf * n_rows)",
        "leaf if isinstance(leaf, int) else int(leaf * n_rows)",
        ("tests/estimators/test_estimator_use.py", "-k", "fractions_of_rows"),
    ),
    Mutant(
        "out of bag: rows drawn once",
        "protocols/vertical/out_of_bag.py",
        "left_out = sampling.counts(tree, n_rows) == 0",
        "left_out = sampling.counts(tree, n_rows) <= 1",
        ("tests/estimators/test_estimator_out_of_bag.py", "-k", "oob_of_a_classifier"),
    ),
    Mutant(
        "out of bag: classes by the rows that were scored",
        "protocols/core/target.py",
        "(rows * right / np.maximum(scored, 1)).sum() / judged",
        "right.sum() / scored.sum()",
        ("tests/estimators/test_estimator_out_of_bag.py", "-k", "few_rows_of_rare or do_not_shift"),
    ),
    Mutant(
        "soundness: branches that overlap",
        "protocols/core/soundness.py",
        'np.array_equal(end[inner + 1], right[inner]), "left',
        'True, "left',
        ("tests/estimators/test_damaged_files.py", "-k", "unsound or told_from"),
    ),
    Mutant(
        "soundness: a leaf without weight",
        "protocols/core/soundness.py",
        "(leaves.weight > 0).all()",
        "(leaves.weight >= 0).all()",
        ("tests/estimators/test_damaged_files.py", "-k", "unsound or told_from"),
    ),
    Mutant(
        "sums: a mask used twice",
        "protocols/sums/masks.py",
        "elif known != digest.digest():",
        "elif known is not known:",
        ("tests/protocols/test_secure_sum_masks.py", "-k", "used_for_one_vector"),
    ),
    Mutant(
        "sums: one client fewer than the minimum",
        "protocols/sums/masks.py",
        "if len(clients) < self._minimum:",
        "if len(clients) < self._minimum - 1:",
        ("tests/protocols/test_secure_sum_masks.py", "-k", "clients_of_a_round"),
    ),
    Mutant(
        "sums: masks that do not know the question",
        "protocols/sums/masks.py",
        "8 * vector.dtype.itemsize, self.clients, self.about)",
        "8 * vector.dtype.itemsize, self.clients)",
        ("tests/protocols/test_secure_sum_masks.py", "-k", "asked_different_things"),
    ),
    Mutant(
        "sums: both shares of a client",
        "protocols/sums/recovery.py",
        "elif self._survivors != survivors:",
        "elif self._survivors is None:",
        ("tests/protocols/test_secure_sum_drop_outs.py", "-k", "both_shares or false_drop_out"),
    ),
    Mutant(
        "sums: survivors that others have not confirmed",
        "protocols/sums/recovery.py",
        "if len(echoes) + 1 < self._circle.quorum:",
        "if len(echoes) + 1 < 0:",
        ("tests/protocols/test_secure_sum_drop_outs.py", "-k", "different_lists or proved"),
    ),
    Mutant(
        "sums: plain ones where secure ones were agreed",
        "protocols/sums/sum_client.py",
        "if message.mode != self._mode:",
        "if message.mode not in ('secure', 'plain'):",
        ("tests/protocols/test_secure_sum_lies.py",),
    ),
    Mutant(
        "collaborative: leaves of fewer rows than the policy says",
        "protocols/rows/collaborative.py",
        "if message.min_rows < self._min_leaf_rows:",
        "if message.min_rows < 0:",
        ("tests/protocols/test_collaborative.py", "-k", "its_own_limit"),
    ),
    Mutant(
        "linear: weights of somebody else",
        "protocols/linear/linear_party.py",
        "if self.target is not None and not _same_weights(weights, self.target.weights):",
        "if self.target is None and not _same_weights(weights, None):",
        ("tests/protocols/test_linear.py",),
    ),
    Mutant(
        "linear: scaled without the weights",
        "protocols/linear/linear_party.py",
        "self._columns = LinearColumns.of(self.table, *self._scaling, weights)",
        "self._columns = LinearColumns.of(self.table, *self._scaling)",
        ("tests/estimators/test_linear_models.py", "-k", "weight"),
    ),
    Mutant(
        "plan: more trees than were ordered",
        "jobs/ordered.py",
        "due = message.first_tree == self._planted and message.n_trees <= left",
        "due = message.first_tree == self._planted",
        ("tests/service/test_dishonest_coordinator.py", "-k", "the_one_that_was_signed"),
    ),
    Mutant(
        "plan: one step more than was ordered",
        "jobs/ordered.py",
        "ordered = asked < plan.max_iter\n",
        "ordered = asked <= plan.max_iter\n",
        ("tests/service/test_dishonest_coordinator.py", "-k", "steps_that_were_ordered"),
    ),
    Mutant(
        "plan: another form of the answers",
        "jobs/ordered.py",
        "ordered &= message.wire == order.wire",
        "ordered &= bool(message.wire)",
        ("tests/service/test_dishonest_coordinator.py", "-k", "form_that_was_ordered"),
    ),
    Mutant(
        "frames: decompression without its bound",
        "runtime/frames.py",
        "chunk = reader.decompress(packed, most + 1)",
        "chunk = reader.decompress(packed)",
        ("tests/runtime/test_frames.py", "-k", "bomb or grows"),
    ),
]

POLICY = [
    Mutant(
        "orders: one that is too old",
        "jobs/order_seal.py",
        "if age > ORDER_DAYS * 86_400:",
        "if age > ORDER_DAYS * 86_400 * 1000:",
        ("tests/service/test_party_jobs.py", "-k", "order and not notice"),
    ),
    Mutant(
        "orders: dated ahead",
        "jobs/order_seal.py",
        "if age < -CLOCK_SECONDS:",
        "if age < -CLOCK_SECONDS * 1e9:",
        ("tests/service/test_party_jobs.py", "-k", "order and not notice"),
    ),
    Mutant(
        "orders: somebody named who takes no part",
        "jobs/orders.py",
        "is not None and party not in self.parties:",
        "is not None and party in ():",
        ("tests/service/test_orders.py",),
    ),
    Mutant(
        "a notice to leave without the policy",
        "jobs/party_job.py",
        "        home.policy.check_order(order.kind, user)\n        home.store.erase_model(order.model)",
        "        home.store.erase_model(order.model)",
        ("tests/service/test_party_jobs.py", "-k", "notice"),
    ),
    Mutant(
        "policy: exactly the fewest rows",
        "jobs/policy.py",
        "if n < self.min_rows:",
        "if n <= self.min_rows:",
        ("tests/service/test_policy.py", "-k", "test_rows"),
    ),
    Mutant(
        "policy: exactly the smallest leaf",
        "jobs/policy.py",
        "if min_samples_leaf < self.min_samples_leaf:",
        "if min_samples_leaf <= self.min_samples_leaf:",
        ("tests/service/test_policy.py", "-k", "test_leaves"),
    ),
    Mutant(
        "policy: sums over two",
        "jobs/policy.py",
        "if two and not self.allow_two:",
        "if two and plain and not self.allow_two:",
        ("tests/service/test_policy.py", "-k", "test_sums"),
    ),
    Mutant(
        "policy: answers as ranks",
        "jobs/policy.py",
        "if form not in self.wire_forms:",
        'if form not in self.wire_forms and form != "ranks":',
        ("tests/service/test_policy.py", "-k", "wire_forms"),
    ),
    Mutant(
        "policy: a batch that was answered before",
        "jobs/policy.py",
        "batch <= last[0]",
        "batch < last[0]",
        ("tests/service/test_policy.py", "-k", "batches_come"),
    ),
    Mutant(
        "policy: one training more than a day allows",
        "jobs/policy.py",
        "used >= self._trainings",
        "used > self._trainings",
        ("tests/service/test_policy.py", "-k", "label_is_learnt"),
    ),
]

JOURNAL = [
    Mutant(
        "journal: links without the one before",
        "runtime/journal_file.py",
        "hashlib.sha256(previous + msgspec.msgpack.encode((job, *fields)))",
        "hashlib.sha256(msgspec.msgpack.encode((job, *fields)))",
        ("tests/runtime/test_journal.py", "-k", "chain_is_what or swapped"),
    ),
    Mutant(
        "journal: the last link is not compared",
        "runtime/journal.py",
        "if (position, before) != (count, head):",
        "if position != count:",
        ("tests/runtime/test_journal.py", "-k", "removed_or_added"),
    ),
    Mutant(
        "journal: bytes of the right length",
        "runtime/journal.py",
        "if (size, digest.digest()) != (record.n_bytes, record.digest):",
        "if size != record.n_bytes:",
        ("tests/runtime/test_journal.py", "-k", "changed_body"),
    ),
    Mutant(
        "journal: records after the end of a job",
        "runtime/journal.py",
        'if self._has_ended(connection):\n            raise JournalError(f"job {self.name} has ended',
        'if count < 0:\n            raise JournalError(f"job {self.name} has ended',
        ("tests/runtime/test_journal.py", "-k", "end_of_a_job_takes"),
    ),
    Mutant(
        "journal: messages stay after the end of a job",
        "runtime/journal.py",
        'rowid = ?", parts)\n        self._journal._erase()',
        'rowid = ?", parts)',
        ("tests/runtime/test_journal.py", "-k", "nothing_is_left_on_disk"),
    ),
    Mutant(
        "charges: a use is noted at every replay",
        "runtime/pending_charges.py",
        "and units and not self.replays:",
        "and units:",
        ("tests/runtime/test_pending_charges.py", "-k", "use_without_privacy"),
    ),
    Mutant(
        "charges: another answer for the same release",
        "runtime/pending_charges.py",
        "if record.charge(*account, charge).answer != charge.answer:",
        "if record.charge(*account, charge) is None:",
        ("tests/runtime/test_pending_charges.py", "-k", "other_noise"),
    ),
    Mutant(
        "files: whole without fsync",
        "data/whole_files.py",
        "            os.fsync(file.fileno())\n",
        "",
        ("tests/data/test_whole_files.py", "-k", "reached_the_disk"),
    ),
]

MUTANTS = KERNELS + PROTOCOLS + POLICY + JOURNAL


def copy_tree(folder: Path) -> None:
    """Copy what git knows of, and the compiled kernels, which are good for the same sources anywhere."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    compiled = Path("src/woodlot/trees/kernels/__pycache__")
    if (ROOT / compiled).is_dir():
        shutil.copytree(ROOT / compiled, folder / compiled, dirs_exist_ok=True)


def run_tests(folder: Path, tests: Sequence[str]) -> tuple[bool, str]:
    """Whether some tests pass, and the line that says which did not."""
    environment = os.environ | {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--no-header"]
    command += ["-m", "slow or not slow", *tests]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return False, f"no end after {SECONDS} s"
    if done.returncode < 0:  # a wrong kernel may write where it must not
        return False, f"ended by signal {-done.returncode}"
    if done.returncode not in (0, 1):
        raise SystemExit(f"pytest could not run {tests}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return done.returncode == 0, failed[0].partition(" - ")[0].split(" ", 1)[1] if failed else ""


def apply(mutant: Mutant, folder: Path) -> tuple[Path, str]:
    """Change the file; returns it and what it held."""
    path = folder / "src" / "woodlot" / mutant.file
    source = path.read_text(encoding="utf-8")
    if source.count(mutant.old) != 1:
        raise SystemExit(
            f"{mutant.name!r}: its text stands {source.count(mutant.old)} times in {mutant.file}, and must stand there "
            "once; bring the mutant up to date"
        )
    path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
    return path, source


def main() -> int:
    """Run the mutants; returns how many have survived."""
    parser = argparse.ArgumentParser(description="Change one line at a time, and see whether a test notices.")
    parser.add_argument("names", nargs="*", help="run only mutants whose name contains one of these texts")
    parser.add_argument("--list", action="store_true", help="only name the mutants")
    parser.add_argument("--trust", action="store_true", help="do not run the tests on the unchanged tree first")
    parser.add_argument("--out", type=Path, help="write the outcome to this file, as a table")
    given = parser.parse_args()
    chosen = [m for m in MUTANTS if not given.names or any(name in m.name for name in given.names)]
    if given.list:
        print("\n".join(mutant.name for mutant in chosen))
        return 0
    lines, survived = ["| mutant | file | outcome | first test that failed |", "|---|---|---|---|"], 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name)
        copy_tree(folder)
        for mutant in chosen:  # all of them, before hours are spent on some
            path, source = apply(mutant, folder)
            path.write_text(source, encoding="utf-8")
        for tests in () if given.trust else dict.fromkeys(mutant.tests for mutant in chosen):
            passed, failed = run_tests(folder, tests)
            if not passed:
                raise SystemExit(f"{' '.join(tests)} fails without any mutant: {failed}")
        for mutant in chosen:
            path, source = apply(mutant, folder)
            begun = time.monotonic()
            alive, failed = run_tests(folder, mutant.tests)
            path.write_text(source, encoding="utf-8")
            survived += alive
            outcome = "**survived**" if alive else "killed"
            lines.append(f"| {mutant.name} | `{mutant.file}` | {outcome} | {f'`{failed}`' if failed else ''} |")
            print(f"{outcome.strip('*'):<9} {time.monotonic() - begun:6.1f} s  {mutant.name}  {failed}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} killed")
    if given.out is not None:
        given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return survived


if __name__ == "__main__":
    sys.exit(main())
