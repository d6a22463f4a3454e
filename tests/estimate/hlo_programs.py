"""Small programs in HLO text for the tests of `weft estimate hlo`, written by hand."""

ADD = """\
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}
"""


def program(body: str, *, before: str = ADD, header: str = "num_partitions=8") -> str:
    """A scheduled program whose ENTRY computation has these instructions."""
    return f"HloModule test, is_scheduled=true, {header}\n\n{before}\nENTRY %main {{\n{body}\n}}\n"


# Two layers on 4 x 2 devices: an asynchronous gather beside a product, a sum that computation waits
# for, and the same gather twice.
LAYERS = program("""\
  %x = bf16[4096,4096]{1,0} parameter(0), sharding={devices=[4,2]<=[8]}, metadata={op_name="a}\\"("}
  %w = bf16[1024,4096]{1,0} parameter(1)
  %gather-start = (bf16[1024,4096]{1,0}, bf16[4096,4096]{1,0}) all-gather-start(%w), channel_id=1, \
replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}, use_global_device_ids=true
  %dot = bf16[4096,4096]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %gather-done = bf16[4096,4096]{1,0} all-gather-done(%gather-start)
  %again = bf16[4096,4096]{1,0} all-gather(%w), channel_id=2, \
replica_groups=mesh['x'=4,'y'=2] {'x'}, dimensions={0}, use_global_device_ids=true
  %sum = bf16[4096,4096]{1,0} all-reduce(%dot), channel_id=3, \
replica_groups={{0,1},{2,3},{4,5},{6,7}}, use_global_device_ids=true, to_apply=%add
  ROOT %out = (bf16[4096,4096]{1,0}, /*index=1*/bf16[4096,4096]{1,0}, bf16[4096,4096]{1,0}) \
tuple(%gather-done, %again, %sum)""")

# A loop of 24 iterations that XLA has counted, with a sum in fours in its body.
LOOP = program(
    """\
  %zero = s32[] constant(0)
  %x = f32[1024]{0} parameter(0)
  %state = (s32[], f32[1024]{0}) tuple(%zero, %x)
  ROOT %loop = (s32[], f32[1024]{0}) while(%state), condition=%test, body=%body, \
backend_config={"known_trip_count":{"n":"24"}}""",
    before=ADD
    + """
%body (state: (s32[], f32[1024])) -> (s32[], f32[1024]) {
  %state = (s32[], f32[1024]{0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %x = f32[1024]{0} get-tuple-element(%state), index=1
  %sum = f32[1024]{0} all-reduce(%x), channel_id=1, replica_groups={{0,2,4,6},{1,3,5,7}}, \
use_global_device_ids=true, to_apply=%add
  ROOT %result = (s32[], f32[1024]{0}) tuple(%next, %sum)
}

%test (state.1: (s32[], f32[1024])) -> pred[] {
  %state.1 = (s32[], f32[1024]{0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%state.1), index=0
  %limit = s32[] constant(10)
  ROOT %less = pred[] compare(%i.1, %limit), direction=LT
}
""",
)

# One of everything else that is read: a fusion, a call, branches, a wrapped collective, messages,
# calls of libraries, tuples in tuples. Sums a and b are of the same data.
MIXED = program(
    """\
  %x = f32[8,16]{1,0} parameter(0)
  %k = f32[3,3,16,8]{3,2,1,0} parameter(1)
  %p = pred[] parameter(2)
  %tuples = ((f32[8,16]{1,0}, pred[]), f32[8]{0}) parameter(3)
  %copied = f32[8,16]{0,1} fusion(%x), kind=kLoop, calls=%copying
  %pair = (f32[8,16], (pred[], f32[8,16])) tuple(%copied, %tuples)
  %outer = (f32[8,16], pred[]) get-tuple-element(%tuples), index=0
  %inner = f32[8,16] get-tuple-element(%outer), index=0
  %first = f32[8,16] get-tuple-element(%pair), index=0
  %a = f32[8,16] all-reduce(%x), channel_id=1, replica_groups=[2,4]<=[8], \
use_global_device_ids=true, to_apply=%add
  %b = f32[8,16] all-reduce(%first), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, \
use_global_device_ids=true, to_apply=%add
  %c = f32[8,16] all-reduce(%inner), channel_id=1, replica_groups=[2,4]<=[8], \
use_global_device_ids=true, to_apply=%add
  %s = ((f32[8,16]), f32[8,16], u32[]) async-start(%x), calls=%wrapped
  %dot = f32[8,8] fusion(%x), kind=kCustom, calls=%fused
  %gemm = (f32[8,8], s8[64]) custom-call(%x, %x), custom_call_target="__cublas$gemm", \
backend_config={"gemm_backend_config":{"lhs_contracting_dimensions":["1"]}}
  %e = f32[8,16] async-done(%s)
  %branch = f32[8,16] conditional(%p, %x, %x), branch_computations={%copying, %wrapped}
  %called = f32[8,16] call(%branch), to_apply=%wrapped
  %token = token[] after-all()
  %recv = (f32[8,16], u32[], token[]) recv(%token), channel_id=9
  %send = (f32[8,16], u32[], token[]) send(%called, %token), channel_id=9, \
frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,2}}}
  %conv = f32[4,8,8,8] convolution(%k, %k), dim_labels=b01f_01io->b01f
  %received = (f32[8,16], token[]) recv-done(%recv), channel_id=9
  %sent = token[] send-done(%send), channel_id=9
  %moved = f32[8,16] collective-permute(%e), channel_id=2, source_target_pairs={{0,1},{1,0}}
  %slice = f32[2,16] dynamic-slice(%moved, %p), dynamic_slice_sizes={2,16}
  ROOT %out = (f32[2,16], f32[8,16]) tuple(%slice, %b)""",
    before=ADD
    + """
%copying (p0: f32[8,16]) -> f32[8,16] {
  %p0 = f32[8,16]{1,0} parameter(0)
  ROOT %copy = f32[8,16]{0,1} copy(%p0)
}

%wrapped (p1: f32[8,16]) -> f32[8,16] {
  %p1 = f32[8,16]{1,0} parameter(0)
  ROOT %sum1 = f32[8,16] reduce-scatter(%p1), channel_id=3, replica_groups=mesh['x'=8] {'x'}, \
dimensions={0}, use_global_device_ids=true, to_apply=%add
}

%fused (p2: f32[8,16]) -> f32[8,8] {
  %p2 = f32[8,16]{1,0} parameter(0)
  ROOT %d = f32[8,8] dot(%p2, %p2), lhs_contracting_dims={1}, rhs_contracting_dims={1}
}
""",
)

# What XLA for TPUs makes of a gather beside a product, and of a sum of which each device keeps a
# slice: a chain of three fusions on one channel, and one fusion of an all-reduce.
CHAIN = program(
    """\
  %w = bf16[512,4096]{1,0} parameter(0)
  %x = bf16[4096,4096]{1,0} parameter(1)
  %start = (bf16[512,4096]{1,0}, bf16[4096,4096]{1,0}, u32[]) fusion(%w), kind=kCustom, calls=%begin
  %part = bf16[512,4096]{1,0} get-tuple-element(%start), index=0
  %whole = bf16[4096,4096]{1,0} get-tuple-element(%start), index=1
  %beside = (bf16[4096,4096]{1,0}, bf16[4096,4096]{1,0}) fusion(%part, %whole, %x), kind=kOutput, \
calls=%middle
  %product = bf16[4096,4096]{1,0} get-tuple-element(%beside), index=0
  %passed = bf16[4096,4096]{1,0} get-tuple-element(%beside), index=1
  %done = bf16[4096,4096]{1,0} fusion(%part, %passed), kind=kCustom, calls=%end
  %scattered = bf16[512,4096]{1,0} fusion(%product), kind=kCustom, calls=%all-reduce-scatter
  ROOT %out = (bf16[4096,4096]{1,0}, bf16[512,4096]{1,0}) tuple(%done, %scattered)""",
    before=ADD
    + """
%begin (p: bf16[512,4096]) -> (bf16[512,4096], bf16[4096,4096], u32[]) {
  %p = bf16[512,4096]{1,0} parameter(0)
  %gather.1 = bf16[4096,4096]{1,0} all-gather(%p), channel_id=7, \
replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}, use_global_device_ids=true
  ROOT %call.1 = (bf16[512,4096]{1,0}, bf16[4096,4096]{1,0}, u32[]) custom-call(%gather.1), \
custom_call_target="AsyncCollectiveStart"
}

%middle (p.1: bf16[512,4096], q.1: bf16[4096,4096], x.1: bf16[4096,4096]) -> \
(bf16[4096,4096], bf16[4096,4096]) {
  %p.1 = bf16[512,4096]{1,0} parameter(0)
  %q.1 = bf16[4096,4096]{1,0} parameter(1)
  %x.1 = bf16[4096,4096]{1,0} parameter(2)
  %gather.2 = bf16[4096,4096]{1,0} all-gather(%p.1), channel_id=7, \
replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}, use_global_device_ids=true
  %dot.1 = bf16[4096,4096]{1,0} dot(%x.1, %x.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %both = (bf16[4096,4096]{1,0}, bf16[4096,4096]{1,0}) tuple(%dot.1, %q.1)
}

%end (p.2: bf16[512,4096], q.2: bf16[4096,4096]) -> bf16[4096,4096] {
  %p.2 = bf16[512,4096]{1,0} parameter(0)
  %q.2 = bf16[4096,4096]{1,0} parameter(1)
  %gather.3 = bf16[4096,4096]{1,0} all-gather(%p.2), channel_id=7, \
replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}, use_global_device_ids=true
  ROOT %call.3 = bf16[4096,4096]{1,0} custom-call(%q.2, %gather.3), \
custom_call_target="AsyncCollectiveDone"
}

%all-reduce-scatter (s: bf16[4096,4096]) -> bf16[512,4096] {
  %s = bf16[4096,4096]{1,0} parameter(0)
  %reduced = bf16[4096,4096]{1,0} all-reduce(%s), channel_id=9, \
replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true, to_apply=%add
  %at = u32[] partition-id()
  %zero = u32[] constant(0)
  ROOT %slice = bf16[512,4096]{1,0} dynamic-slice(%reduced, %at, %zero), \
dynamic_slice_sizes={512,4096}
}
""",
)
