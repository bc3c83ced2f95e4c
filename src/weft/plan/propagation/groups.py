"""Sharding groups: values that someone wants to lie alike, whatever that turns out to be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from weft.errors import WeftError
from weft.lang import Application, Graph, Value
from weft.plan.propagation.seeds import Seed, Seeds


class Membership(NamedTuple):
    """One value put into one group, and the manual computation that it stands in."""

    value: Value
    group: int
    inside: Application | None


def sharding_groups(graph: Graph) -> list[list[str]]:
    """The groups of a program: groups that share a value are one."""
    members = list(_memberships(graph, None))
    first: dict[int, Membership] = {}
    for member in members:
        _check(member, first.setdefault(member.group, member))
    leaders = _joined(members)
    groups: dict[int, dict[str, None]] = {}
    for member in members:
        groups.setdefault(leaders[member.group], {})[member.value.name] = None
    return [list(groups[leader]) for leader in sorted(groups)]


def _memberships(graph: Graph, inside: Application | None) -> Iterator[Membership]:
    for application in graph.applications:
        if application.operator == "sharding_group":
            value = graph.values[application.operands[0]]
            yield Membership(value, application.attributes["group_id"], inside)
        manual = application.operator == "manual_computation"
        for region in application.regions:
            yield from _memberships(region, application if manual else inside)


def _check(member: Membership, first: Membership) -> None:
    """Refuse what cannot lie alike."""
    if member.inside is not first.inside:
        raise WeftError(
            f"sharding group {member.group} has {first.value.name} and {member.value.name}, which "
            "are not in the same manual computation"
        )
    if member.value.shape != first.value.shape:
        raise WeftError(
            f"sharding group {member.group} has {first.value.name} of shape "
            f"{list(first.value.shape)} and {member.value.name} of shape {list(member.value.shape)}"
        )


def _joined(members: list[Membership]) -> Mapping[int, int]:
    """For each group the least of those that it is one with."""
    leaders = {member.group: member.group for member in members}

    def leader(group: int) -> int:
        while leaders[group] != group:
            group = leaders[group]
        return group

    seen: dict[str, int] = {}
    for member in members:
        one, two = leader(member.group), leader(seen.setdefault(member.value.name, member.group))
        leaders[max(one, two)] = min(one, two)
    return {group: leader(group) for group in leaders}


def align(group: list[str], seeds: Seeds) -> Seed | None:
    """Give all of a group the seed that some have; if they differ, the first, and none to any.

    A seed that comes back is a conflict: the members then keep what they have, and what uses them
    sees other values, which lie alike.
    """
    owners = [seeds.owner(name) for name in group]
    known = [seeds.found[owner] for owner in owners if owner in seeds.found]
    telling = known if len(group) == 1 else [seed for seed in known if not seed.says_nothing]
    if any(seed != telling[0] for seed in telling):
        return telling[0]
    if telling:
        seeds.found.update(dict.fromkeys(owners, telling[0]))
    return None
