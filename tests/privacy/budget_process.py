"""A client that charges releases, one after the other, until it is killed: ``budget_process.py FILE COUNT``."""

from __future__ import annotations

import os
import sys

from woodlot.privacy.accounting import Spend
from woodlot.privacy.budget import Budget, BudgetFile, Charge


def main() -> None:
    path, count = sys.argv[1:]
    with BudgetFile(path) as file:
        for number in range(int(count)):
            charge = Charge(
                unit="rows", release=f"r{number}", mechanism="noise", spend=Spend(0.01), answer=os.urandom(8)
            )
            with file.transaction() as ledger:
                recorded = ledger.charge("bank", "loans", Budget(1.0), charge)
            sent = (recorded.answer or b"").hex()
            print(charge.release, sent, flush=True)


if __name__ == "__main__":
    main()
