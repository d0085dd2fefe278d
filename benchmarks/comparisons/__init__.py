"""Comparisons of `bench.py`, one a module.

A module is imported by this project's interpreter and by that of its peers, so
that it imports the standard library and NumPy alone; its functions import the
rest. It has

    TITLE, UNIT      what is measured, and what is counted (pairs, bytes, ...)
    OURS, PEERS      name of a side -> its function, run by either interpreter
    TOLERANCE        largest difference of the sides' scores
    MEASURE          'seconds', or 'memory', of which the ratio is taken
    ROUNDS           optional: no more rounds than these
    GOALS            optional: name of a side -> the ratio that is wanted
    WITHIN           optional: name of a side -> the seconds that are wanted
    SHORT            optional: why a goal is missed, and what to try next
    its docstring    says in BENCHMARKS.md what is measured
    prepare(folder, size)    writes weights, and returns the job, a JSON value;
                     its 'items' are the number of UNITs
    sides: function(job) -> run() -> {'scores': array, ...}; see `side.py`.
                     'table' has 'columns' and 'rows' to be shown; 'padding' is
                     the share of padding in batches

`size` has 'quick' (a size for tests), 'data' (a folder of texts, or None) and
'platform' (cpu, gpu or tpu).
"""

# In which order; the peak comes first, since shares of it are taken.
ORDER = (
  'matrix_peak',
  't5_scoring',
  'corpus',
  'cost_curves',
  'bertscore',
  'comet',
  'mbr_comet',
  'mbr_chrf',
  'frugalscore',
  'cold_start',
  'training_step',
  'group_objective',
  'blockwise_loss',
  'meta_evaluation',
  'conversion',
  'mining',
  'board',
  'service',
)
