"""Collectives of a program's text, counted by hand."""

from t5score_jax.precompile import collectives
from t5score_jax.precompile.collectives import Traffic

# As TPU programs are written: halves, layouts, a loop, a wrapped operation.
_TEXT = """\
HloModule jit_f, is_scheduled=true

%wrapped (p: bf16[4,128]) -> bf16[8,128] {
  ROOT %g = bf16[8,128]{1,0:T(8,128)(2,1)} all-gather(%p), dimensions={0}
}

%body (t: (s32[], f32[16])) -> (s32[], f32[16]) {
  %r = (f32[16]{0:T(256)}, f32[2,3]{1,0}) all-reduce(%a, %b), to_apply=%add
  %s = (bf16[4], bf16[8,128]) async-start(%x), calls=%wrapped
  %d = bf16[8,128]{1,0} async-done(%s), calls=%wrapped
}

%cond (t: (s32[], f32[4])) -> pred[] {
  %n = s32[]{:T(128)} constant(3)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

%inner (t: (s32[], f32[4])) -> (s32[], f32[4]) {
  %rs = f32[4]{0} reduce-scatter(%v), to_apply=%add
}

ENTRY %main (a: f32[16]) -> f32[16] {
  %w = (s32[], f32[16]) while(%t), condition=%c, body=%body, \
backend_config={"known_trip_count":{"n":"5"}}
  %w2 = (s32[], f32[4]) while(%t2), condition=%cond, body=%inner, metadata={}
  %p0 = (f32[4]{0}, f32[4]{0}, u32[]) collective-permute-start(%y)
  %p1 = f32[4]{0} collective-permute-done(%p0)
  %q = pred[7]{0} all-to-all(%z), dimensions={0}
}
"""


def test_a_program_by_hand():
  assert collectives.count(_TEXT) == {
    'all-reduce': Traffic(5, 5 * 4 * (16 + 6)),
    'all-gather': Traffic(5, 5 * 2 * 8 * 128),
    'collective-permute': Traffic(1, 16),
    'all-to-all': Traffic(1, 7),
    'reduce-scatter': Traffic(3, 3 * 16),
  }
