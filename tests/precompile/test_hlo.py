"""Collectives are found in compiled programs, with loops and fusions."""

# ruff: noqa: E501 (HLO has long lines)

import pytest

from t5score_jax.precompile import hlo

PROGRAM = """\
HloModule jit_steps, is_scheduled=true

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%all-reduce-scatter.1 (input: bf16[8,4]) -> bf16[2,4] {
  %input = bf16[8,4]{1,0} parameter(0)
  %all-reduce.9 = bf16[8,4]{1,0} all-reduce(%input), channel_id=7, replica_groups=[2,4]<=[8], to_apply=%add
  ROOT %slice = bf16[2,4]{1,0} slice(%all-reduce.9), slice={[0:2], [0:4]}
}

%inner_body (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %p = (s32[], f32[4]{0}) parameter(0)
  %x.1 = f32[4]{0} get-tuple-element(%p), index=1
  %all-reduce.1 = f32[4]{0} all-reduce(%x.1), channel_id=1, replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%add, metadata={op_name="jit(steps)/inner"}
  ROOT %t = (s32[], f32[4]{0}) tuple(%x.1, %all-reduce.1)
}

%inner_condition (p.1: (s32[], f32[4])) -> pred[] {
  %p.1 = (s32[], f32[4]{0}) parameter(0)
  %bound = s32[]{:T(128)} constant(5)
  %i = s32[] get-tuple-element(%p.1), index=0
  ROOT %less = pred[] compare(%i, %bound), direction=LT
}

%outer_body (q: (s32[], f32[4])) -> (s32[], f32[4]) {
  %q = (s32[], f32[4]{0}) parameter(0)
  %part = bf16[1,16]{1,0:T(8,128)(2,1)} constant({...})
  %all-gather.1 = bf16[4,16]{1,0:T(8,128)(2,1)S(1)} all-gather(%part), channel_id=2, replica_groups=mesh['a'=2,'b'=4] {'b'}, dimensions={0}
  %again = bf16[4,16]{1,0:T(8,128)(2,1)} all-gather(%part), channel_id=2, replica_groups=mesh['a'=2,'b'=4] {'b'}, dimensions={0}
  ROOT %loop = (s32[], f32[4]{0}) while(%q), condition=%inner_condition, body=%inner_body
}

%outer_condition (q.1: (s32[], f32[4])) -> pred[] {
  %q.1 = (s32[], f32[4]{0}) parameter(0)
  ROOT %true = pred[] constant(true)
}

ENTRY %main (a: f32[4], b: bf16[8,4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  %b = bf16[8,4]{1,0} parameter(1)
  %start = (s32[], f32[4]{0}) tuple(%a, %a)
  %while.1 = (s32[], f32[4]{0}) while(%start), condition=%outer_condition, body=%outer_body, backend_config={"known_trip_count":{"n":"3"}}
  %scattered = bf16[2,4]{1,0} fusion(%b), kind=kCustom, calls=%all-reduce-scatter.1
  %permute-start = (f32[4]{0}, f32[4]{0}) collective-permute-start(%a), channel_id=3, source_target_pairs={{0,1},{1,0}}
  %two = (f32[4]{0}, bf16[8,4]{1,0}) all-reduce(%a, %b), channel_id=4, to_apply=%add
  ROOT %result = f32[4]{0} get-tuple-element(%while.1), index=1
}
"""


def _found():
  return {
    (one.kind, one.group): one for one in hlo.collectives(PROGRAM, devices=8)
  }


def test_every_collective_is_found_once():
  assert set(_found()) == {
    ('all-reduce', 2),
    ('all-reduce', 8),
    ('all-gather', 4),
    ('reduce-scatter', 4),
    ('collective-permute', 8),
  }
  assert len(hlo.collectives(PROGRAM, 8)) == 5


def test_loops_count_as_often_as_they_run():
  found = _found()
  # Three times five; the outer loop's count is XLA's, the inner's compared.
  assert found['all-reduce', 2].count == 15
  assert found['all-reduce', 2].source == 'jit(steps)/inner'
  assert found['all-gather', 4].count == 3
  assert found['all-reduce', 8].count == 1


def test_bytes_and_what_a_ring_sends():
  found = _found()
  assert found['all-reduce', 2].bytes == 16
  # Twice (n - 1) / n of the bytes, each time.
  assert found['all-reduce', 2].sent == 15 * 16
  # bfloat16 [4, 16] comes out, a quarter of it was there.
  assert found['all-gather', 4].bytes == 128
  assert found['all-gather', 4].sent == 3 * 96
  assert found['reduce-scatter', 4].bytes == 64
  assert found['reduce-scatter', 4].sent == 48
  assert found['all-reduce', 8].bytes == 16 + 64
  assert found['all-reduce', 8].sent == pytest.approx(2 * 80 * 7 / 8)
  assert found['collective-permute', 8].sent == 16


def test_a_program_without_collectives():
  text = (
    'HloModule m\n\nENTRY %main (a: f32[4]) -> f32[4] {\n'
    '  ROOT %a = f32[4]{0} parameter(0)\n}\n'
  )
  assert hlo.collectives(text, 1) == []
