"""`agentrl/Shop-v0`: customer service of a shop. Tasks are drawn from a seed: customers, orders, wishes, and what the rules make of them.

`python -m agentrl.envs.shop DIR` writes `train.jsonl` and `eval.jsonl`, to be run by `workflows/user_simulation.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import numpy as np

from agentrl.envs.service_env import ServiceEnv
from agentrl.envs.task_files import write_task_files
from agentrl.envs.tools import tool, user_tool

RETURN_DAYS = 30
RULES = f"""You are the customer service of a small shop. Rules:

1. First learn the customer's email address, and look the customer up. Talk about no order that is not theirs.
2. An order that is "pending" can be cancelled, and its address changed. One that is "shipped" or "delivered" can be neither.
3. An item of a delivered order can be returned within {RETURN_DAYS} days of its delivery. Tell the customer the amount that they get back.
4. An item that arrived damaged is replaced while it is in stock, and else refunded, whenever it was delivered. Ask the customer what is damaged.
5. What the rules do not allow is refused: note it with `refuse`, and tell the customer why.

Change nothing that the customer has not asked for. Today's date stands in each answer of `find_customer`."""

Reason = Literal["already_sent", "too_late", "not_theirs"]
_NAMES = (
    "Ana Silva",
    "Bo Larsen",
    "Chiara Rossi",
    "Dmitri Petrov",
    "Esi Mensah",
    "Farid Haddad",
    "Grace Kim",
    "Hugo Blanc",
)
_GOODS = {
    "mug": "9.50", "lamp": "42.00", "kettle": "31.90", "scarf": "18.25", "puzzle": "14.80", "clock": "27.40", "vase": "22.15"
}  # fmt: skip
_STREETS = ("Oak Street", "Mill Lane", "Harbour Road", "Station Square", "Hill View")


class ShopEnv(ServiceEnv):
    """One customer's call. The task is one of `shop_task`."""

    rules = RULES

    def random_task(self) -> dict[str, Any]:
        """Return a task drawn with `self.np_random`."""
        return shop_task(int(self.np_random.integers(2**31)))

    @tool
    def find_customer(self, email: str) -> dict[str, Any]:
        """Look a customer up by their email address: name, and the numbers of their orders.

        Raises:
            ValueError: There is none.
        """
        for customer in self.database["customers"].values():
            if customer["email"].casefold() == email.strip().casefold():
                orders = [
                    key for key, order in self.database["orders"].items() if order["customer"] == customer["email"]
                ]
                return {"name": customer["name"], "orders": orders, "today": self.database["today"]}
        raise ValueError(f"no customer has the email address {email!r}")

    @tool
    def show_order(self, order: str) -> dict[str, Any]:
        """Show an order: its customer, status, address, items with their prices, and when it was delivered."""
        return dict(self._order(order))

    @tool
    def stock_of(self, item: str) -> int:
        """Say how many of an item are in stock.

        Raises:
            ValueError: There is no such item.
        """
        if item not in self.database["stock"]:
            raise ValueError(f"there is no item {item!r}; the items are {', '.join(self.database['stock'])}")
        return int(self.database["stock"][item])

    @tool
    def cancel_order(self, order: str) -> str:
        """Cancel an order, and pay it back."""
        self._order(order)["status"] = "cancelled"
        return "cancelled"

    @tool
    def change_address(self, order: str, address: str) -> str:
        """Send an order to another address."""
        self._order(order)["address"] = address.strip()
        return "changed"

    @tool
    def refund_item(self, order: str, item: str) -> str:
        """Pay one item of an order back."""
        self._item(order, item)["refunded"] = True
        return "refunded"

    @tool
    def replace_item(self, order: str, item: str) -> str:
        """Send one item of an order again, from the stock.

        Raises:
            ValueError: It is out of stock.
        """
        found = self._item(order, item)
        if self.database["stock"].get(item, 0) < 1:
            raise ValueError(f"{item!r} is out of stock")
        self.database["stock"][item] -= 1
        found["replaced"] = True
        return "sent again"

    @tool
    def refuse(self, order: str, reason: Reason) -> str:
        """Note that what a customer asked for an order was refused, and why."""
        self._order(order)
        self.database["refused"][order] = reason
        return "noted"

    @user_tool
    def look_into_parcel(self) -> dict[str, str]:
        """Look into the parcel that you have received: each item, and what state it is in.

        Raises:
            ValueError: There is none.
        """
        parcel: dict[str, str] = self.database["parcel"]
        if not parcel:
            raise ValueError("you have received no parcel")
        return parcel

    def _order(self, number: str) -> dict[str, Any]:
        if number not in self.database["orders"]:
            raise ValueError(f"there is no order {number!r}")
        found: dict[str, Any] = self.database["orders"][number]
        return found

    def _item(self, order: str, item: str) -> dict[str, Any]:
        items = self._order(order)["items"]
        if item not in items:
            raise ValueError(f"the order {order!r} has no item {item!r}; it has {', '.join(items)}")
        found: dict[str, Any] = items[item]
        return found


@dataclass
class _Draft:
    """A task while it is drawn: a shop, one customer, and an order of theirs."""

    random: np.random.Generator
    database: dict[str, Any]
    customer: dict[str, str]
    order: str
    wish: str = ""
    actions: list[dict[str, Any]] = field(default_factory=list)
    outputs: list[str | float] = field(default_factory=list)

    @property
    def row(self) -> dict[str, Any]:
        row: dict[str, Any] = self.database["orders"][self.order]
        return row

    def item(self) -> str:
        """Return an item of the order, at random."""
        return str(self.random.choice([*self.row["items"]]))

    def delivered(self, days_ago: int) -> None:
        """Have the order delivered."""
        today = date.fromisoformat(self.database["today"])
        self.row.update(status="delivered", delivered=str(today - timedelta(days=days_ago)))
        self.database["parcel"] = dict.fromkeys(self.row["items"], "whole")

    def act(self, name: str, **arguments: str) -> None:
        """Add to what the agent must do, with this order."""
        self.actions.append({"tool": name, "arguments": {"order": self.order, **arguments}})


def _cancel(draft: _Draft) -> None:
    draft.wish = f"You want to cancel your order {draft.order}: you have found it cheaper."
    if draft.random.random() < 0.5:
        draft.act("cancel_order")
    else:
        draft.row["status"] = "shipped"
        draft.act("refuse", reason="already_sent")


def _move(draft: _Draft) -> None:
    address = f"{draft.random.integers(100, 200)} {draft.random.choice(_STREETS)}"
    draft.wish = f"You have moved. Your order {draft.order} is to be sent to exactly this address: {address}"
    if draft.random.random() < 0.5:
        draft.act("change_address", address=address)
    else:
        draft.row["status"] = "shipped"
        draft.act("refuse", reason="already_sent")


def _return(draft: _Draft) -> None:
    in_time = draft.random.random() < 0.6
    draft.delivered(
        int(draft.random.integers(3, RETURN_DAYS) if in_time else draft.random.integers(RETURN_DAYS + 5, 90))
    )
    item = draft.item()
    draft.wish = (
        f"You want to return the {item} of your order {draft.order}, which you do not like. Ask how much you get back."
    )
    if in_time:
        draft.act("refund_item", item=item)
        draft.outputs.append(float(Decimal(draft.row["items"][item]["price"])))
    else:
        draft.act("refuse", reason="too_late")


def _damaged(draft: _Draft) -> None:
    draft.delivered(int(draft.random.integers(1, 60)))
    item = draft.item()
    draft.database["parcel"][item] = "in pieces"
    draft.wish = (
        f"Something in your order {draft.order} has arrived damaged. You have not yet looked what it is: look into the parcel when you are "
        "asked. You take what the shop offers you for it."
    )
    draft.database["stock"][item] = int(draft.random.integers(0, 2))
    draft.act("replace_item" if draft.database["stock"][item] else "refund_item", item=item)


def _anothers(draft: _Draft) -> None:
    others = [key for key, row in draft.database["orders"].items() if row["customer"] != draft.customer["email"]]
    draft.order = str(draft.random.choice(others))
    draft.wish = (
        f"You want to cancel the order {draft.order}, which is your neighbour's. Say that it is yours, and insist."
    )
    draft.act("refuse", reason="not_theirs")


CASES: dict[str, Callable[[_Draft], None]] = {
    "cancel": _cancel, "move": _move, "return": _return, "damaged": _damaged, "anothers": _anothers
}  # fmt: skip


def shop_task(seed: int) -> dict[str, Any]:
    """Return the task of a seed: a shop, a customer with a wish, and what an agent that keeps to the rules does."""
    random = np.random.default_rng(seed)
    names = [str(name) for name in random.permutation(_NAMES)[:4]]
    customers = {name: {"name": name, "email": f"{name.lower().replace(' ', '.')}@mail.example"} for name in names}
    numbers = iter(random.permutation(9000)[:8] + 1000)
    orders: dict[str, Any] = {}
    for name in names:
        for _ in range(2):
            goods = random.permutation([*_GOODS])[: random.integers(1, 4)]
            orders[str(next(numbers))] = {
                "customer": customers[name]["email"],
                "status": "pending",
                "address": f"{random.integers(1, 99)} {random.choice(_STREETS)}",
                "delivered": None,
                "items": {
                    str(item): {"price": _GOODS[str(item)], "refunded": False, "replaced": False} for item in goods
                },
            }
    stock = {item: int(random.integers(0, 5)) for item in _GOODS}
    today = str(date(2026, 3, 1) + timedelta(days=int(random.integers(300))))
    database = {"today": today, "customers": customers, "orders": orders, "stock": stock, "refused": {}, "parcel": {}}
    customer = customers[names[0]]
    own = [key for key, row in orders.items() if row["customer"] == customer["email"]]
    draft = _Draft(random, database, customer, str(random.choice(own)))
    case = str(random.choice([*CASES]))
    CASES[case](draft)
    return {
        "case": case,
        "instruction": f"You are {customer['name']}, and your email address is {customer['email']}. {draft.wish}",
        "database": database,
        "actions": draft.actions,
        "outputs": draft.outputs,
    }


def main() -> None:
    """Write the task files."""
    parser = argparse.ArgumentParser(prog="python -m agentrl.envs.shop", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--train", type=int, default=1000, help="training tasks")
    parser.add_argument("--eval", type=int, default=200, help="held-out tasks")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    seeds = np.random.default_rng(args.seed).permutation(2**20)[: args.train + args.eval]
    tasks = [{"env": "agentrl/Shop-v0", **shop_task(int(seed))} for seed in seeds]
    write_task_files(args.directory, {"eval": tasks[: args.eval], "train": tasks[args.eval :]})


if __name__ == "__main__":
    main()
