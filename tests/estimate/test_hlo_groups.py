"""Tests which devices take part in a collective, in each form in which HLO text names them."""

import pytest

from tests.estimate.hlo_programs import program
from transport.estimate.hlo.groups import DEVICES_MAX, Devices, Groups
from transport.estimate.hlo.text import HloError, parse

FOURS = ((0, 2, 4, 6), (1, 3, 5, 7))
PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7))


def groups_of(
    attributes: str, header: str = "num_partitions=8", kind: str = "all-reduce"
) -> Groups:
    """The groups of a collective with these attributes."""
    body = f"  %x = f32[8] parameter(0)\n  ROOT %y = f32[8] {kind}(%x), {attributes}"
    one = parse(program(body, header=header)).entry.named["y"]
    return Devices(parse(program(body, header=header)), [one]).groups(one, kind)


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,2,4,6},{1,3,5,7}}", FOURS),
        ("{ {0, 2,4,6},\n {1,3,5,7} }", FOURS),
        ("[2,4]<=[4,2]T(1,0)", FOURS),
        ("mesh['x'=4,'y'=2] {'x'}", FOURS),
        ("[4,2]<=[8]", PAIRS),
        ("mesh['x'=4,'y'=2] {'y'}", PAIRS),
        ("[1,8]<=[8]", (tuple(range(8)),)),
        ("{}", (tuple(range(8)),)),
        ("{{}}", (tuple(range(8)),)),
        # Device 4i + 2j + k is at [i,j,k]; transposed to [k,i,j], groups are those of one k.
        ("[2,4]<=[2,2,2]T(2,0,1)", FOURS),
        ("mesh['x'=2,'y'=2,'z'=2] {'x','y'}", FOURS),
        # In the order of the named axes: y counts slower than x.
        ("mesh['x'=2,'y'=2,'z'=2] {'y','x'}", ((0, 4, 2, 6), (1, 5, 3, 7))),
        # The first and the second half of an axis of 8, in parts of 2 and 4.
        ("mesh['x'=8] {'x':(1)2}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['x'=8] {'x':(2)4}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['x'=8] {'x':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        # The devices of the mesh are 0,4,1,5,2,6,3,7.
        ("mesh['x'=4,'y'=2], device_ids=([2,4]T(1,0)) {'y'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['x'=2,'y'=4], device_ids=(7,6,5,4,3,2,1,0) {'y'}", ((7, 6, 5, 4), (3, 2, 1, 0))),
    ],
)
def test_groups__forms(text: str, groups: Groups) -> None:
    given = f"channel_id=1, replica_groups={text}, use_global_device_ids=true"
    assert groups_of(given) == groups


@pytest.mark.parametrize(
    ("kind", "attributes", "groups"),
    [
        # Without a channel, numbers are replicas; each partition has a group of its own.
        ("all-reduce", "replica_groups={{0,1}}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("all-to-all", "replica_groups={}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        # With one, a sum is over all partitions of the replicas.
        ("all-reduce", "channel_id=1, replica_groups={{0},{1}}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        # Others name partitions; each replica has a group of its own.
        ("all-to-all", "channel_id=1, replica_groups={{0,1},{2,3}}", PAIRS[::2] + PAIRS[1::2]),
        (
            "collective-permute",
            "channel_id=1, source_target_pairs={{0,1},{1,0}}",
            ((0, 1), (4, 5), (1, 0), (5, 4)),
        ),
        ("collective-permute", "source_target_pairs={{0,1}}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("collective-permute", "source_target_pairs={}", ()),
    ],
)
def test_groups__replicas_and_partitions(kind: str, attributes: str, groups: Groups) -> None:
    """2 replicas of 4 partitions: device 4r + p."""
    header = "replica_count=2, num_partitions=4"
    assert sorted(groups_of(attributes, header, kind)) == sorted(groups)


def test_groups__a_header_without_devices() -> None:
    assert groups_of("replica_groups={{0,1},{2,3}}", "x=1") == ((0, 1), (2, 3))
    assert groups_of("replica_groups={}", "x=1") == ((0,),)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{{0,1},{1,2}}", "a device is in two groups"),
        ("{{0,8}}", "device 8 of y: the program has 8 devices"),
        ("{{0,1},{}}", "a group is empty"),
        ("{0,1}", "the form is not known"),
        ("[2,4]<=[9]", "the sizes do not agree"),
        ("[2,2,2]<=[8]", "expected [groups,devices]"),
        ("[2,4]<=[4,2]T(0,0)", "wrong axes of a transposition"),
        (f"[1,{DEVICES_MAX + 1}]<=[{DEVICES_MAX + 1}]", f"expected 1 to {DEVICES_MAX} devices"),
        ("[0,4]<=[0]", "expected 1 to"),
        ("mesh['x'=4,'y'=2] {'z'}", "an axis is not in the mesh"),
        ("mesh['x'=4,'y'=2] {'x','x'}", "axis x has no such part"),
        ("mesh['x'=8] {'x':(3)2}", "axis x has no such part"),
        ("mesh['x'=8] {'x':(2)0}", "axis x has no such part"),
        ("mesh['x'=8]", "the form is not known"),
        ("mesh['x'=2,'y'=4], device_ids=(1,0) {'y'}", "another number of devices"),
    ],
)
def test_groups__errors(text: str, says: str) -> None:
    with pytest.raises(HloError) as error:
        groups_of(f"channel_id=1, replica_groups={text}, use_global_device_ids=true")
    assert says in str(error.value)


@pytest.mark.parametrize("pairs", ["{{0,1},{0,2}}", "{{0,1,2}}"])
def test_groups__wrong_pairs(pairs: str) -> None:
    with pytest.raises(HloError, match="wrong pairs of source and target"):
        groups_of(f"channel_id=1, source_target_pairs={pairs}", kind="collective-permute")


def test_groups__too_many_devices() -> None:
    with pytest.raises(HloError, match="at most 131072 are read"):
        groups_of("replica_groups={}", "num_partitions=131073")
