"""An example of every command, shown at the end of its help, and the groups in which the commands are listed."""

from __future__ import annotations

START, SET_UP, LEARN, USE, LEAVE, OPERATE, MEASURE = (
    "Start here",
    "Set up a federation",
    "Learn (users)",
    "Use models (users)",
    "Leave and forget",
    "Operate (owners and operators)",
    "Measure",
)

PANELS = {
    START: ("demo", "schema"),
    SET_UP: ("new", "provision", "join", "identity", "check", "coordinator", "party"),
    LEARN: ("catalog", "align", "plan", "train", "search", "order", "mpi"),
    USE: ("models", "jobs", "parties", "evaluate", "explain", "drift", "card", "predict", "score"),
    LEAVE: ("revoke", "forget"),
    OPERATE: ("approvals", "budget", "audit", "report", "dashboard", "backup", "restore"),
    MEASURE: ("leak-test", "bench", "warm-up"),
}
"""The commands of each group of ``woodlot --help``."""

PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}

EXAMPLES = {
    "demo": "woodlot demo --keep",
    "schema": "woodlot schema train",
    "new": "woodlot new federation.toml",
    "provision": "woodlot provision federation.toml shop-request.pem",
    "join": "woodlot join --as shop",
    "coordinator": "woodlot coordinator coordinator.toml",
    "party": "woodlot party party.toml --log-level info",
    "check": "woodlot check party.toml",
    "plan": "woodlot plan --rows 100000 --columns 40",
    "bench": "woodlot bench --rows 100000 --trees 100",
    "catalog": "woodlot catalog --tables customers --job job.toml",
    "train": "woodlot train job.toml --name churn",
    "search": "woodlot search job.toml --grid max_depth=4,8 --cv 5",
    "evaluate": "woodlot evaluate --model churn --y bank.default --tables customers --job job.toml",
    "explain": "woodlot explain churn --tables customers --reasons 3 --job job.toml",
    "drift": "woodlot drift churn --tables newcomers --job job.toml",
    "card": "woodlot card churn --out churn.md --job job.toml",
    "predict": "woodlot predict --model churn --tables newcomers --deliver bank --job job.toml",
    "score": "woodlot score 1017 1023 --model churn --tables customers --job job.toml",
    "revoke": "woodlot revoke churn shop --y bank.default --tables customers --out receipt.json --job job.toml",
    "forget": "woodlot forget model/ ids.csv --table bank=bank.csv --id customer_id --out smaller/ --receipt r.json",
    "align": "woodlot align job.toml",
    "parties": "woodlot parties --job job.toml",
    "audit": "woodlot audit 3f0c9a12 --job job.toml",
    "report": "woodlot report coordinator.toml --from 2026-01-01 --out report.html",
    "dashboard": "woodlot dashboard party.toml",
    "backup": "woodlot backup /var/lib/woodlot/state bank.tar",
    "restore": "woodlot restore bank.tar /var/lib/woodlot/state --accept-lost-records",
    "mpi": "mpirun -n 3 woodlot mpi job.toml",
    "order": "woodlot order job.toml --certificates certificates/ --nvflare job/",
    "leak-test": "woodlot leak-test bank.parquet --label default --party bank=age,income --party shop=visits",
    "warm-up": "woodlot warm-up",
    "identity": "woodlot identity request identity --role party --name bank",
    "identity init": "woodlot identity init authority --federation loans",
    "identity request": "woodlot identity request identity --role party --name bank",
    "identity sign": "woodlot identity sign authority request.pem --out bank.pem",
    "identity install": "woodlot identity install identity bank.pem",
    "identity show": "woodlot identity show identity",
    "identity revoke": "woodlot identity revoke authority bank",
    "identity revocations": "woodlot identity revocations authority --renew",
    "identity keys": "woodlot identity keys keys.toml",
    "jobs": "woodlot jobs --all --job job.toml",
    "jobs attach": "woodlot jobs attach 3f0c9a12 --job job.toml",
    "jobs resume": "woodlot jobs resume 3f0c9a12 --detach --job job.toml",
    "jobs cancel": "woodlot jobs cancel 3f0c9a12 --job job.toml",
    "jobs show": "woodlot jobs show 3f0c9a12 --json --job job.toml",
    "models": "woodlot models --job job.toml",
    "models list": "woodlot models list --job job.toml",
    "models show": "woodlot models show churn --job job.toml",
    "models export": "woodlot models export churn model/ --job job.toml",
    "models delete": "woodlot models delete churn --yes --job job.toml",
    "budget": "woodlot budget show party.toml",
    "budget show": "woodlot budget show party.toml --releases",
    "approvals": "woodlot approvals --config party.toml",
    "approvals allow": "woodlot approvals allow 3f0c9a12 --config party.toml",
    "approvals refuse": 'woodlot approvals refuse 3f0c9a12 --reason "ask for fewer columns" --config party.toml',
}
"""By the name of the command, with the group before it where there is one."""


def epilog(name: str, more: str = "") -> str:
    """What the help of a command ends with."""
    return f"Example: `{EXAMPLES[name]}`" + (f" {more}" if more else "")
