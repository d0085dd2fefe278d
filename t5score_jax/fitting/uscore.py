"""Builds a UScore metric from two monolingual corpora.

Follows Belouadi and Eger 2023, section 3. The parts are built in the order in
which they depend on each other: a map of word vectors, from pairs mined by
their distance; a translator of the sources, trained on pairs mined with that
map; a language model of the targets; and a sentence encoder, trained on pairs
that it mines itself. Given parallel text, parts are trained on it in addition
(appendix C).

    WORK/
      uscore.json       what the run depends on
      words/            vectors of words, distances
      map               of the words
      pairs.jsonl       what the translator is trained on
      translator/ translator_tuned/ language_model/
      rounds/ tuned/    of the encoder of sentences

A stopped run resumes there, also within a part. Not here: what the parts
compute (`metrics/uscore.py`), the command line (`commands/uscore.py`).
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints import kinds, packaged, uscore
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.crosslingual import pseudo_references, remap, remapping
from t5score_jax.crosslingual import runs as mining_runs
from t5score_jax.data import files, folders, runs, translations
from t5score_jax.errors import InputError, OptionError
from t5score_jax.fitting import contrastive
from t5score_jax.fitting import translator as translating
from t5score_jax.inference import encoding
from t5score_jax.runtime import validation

PARTS = ('wmd', 'pseudo', 'lm', 'sentence')
_MANIFEST = 'uscore.json'
Say = Callable[[str], None]
Pair = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Plan:
  """How a metric is built; the defaults are the paper's.

  Attributes:
    parts: The parts to build, from `PARTS`; 'pseudo' needs 'wmd'.
    weights: A name in `checkpoints.uscore.WEIGHTS`.
    remap: How the map is estimated; None for no map.
    align_layer: See `remapping.layers`.
    translator: How the translator is trained.
    translator_neighbours: Number of nearest sentences that are compared exactly
      when the translator's pairs are mined.
    translator_share: Number of the translator's pairs, as a share of the
      sources.
    beams: Beam width of the translator; 1 is greedy.
    language_model: How the language model is trained.
    contrast: How the sentence encoder is trained.
    mining: How the sentence encoder's pairs are mined.
  """

  parts: Sequence[str] = PARTS
  weights: str = 'paper'
  remap: remapping.Settings | None = remapping.Settings()  # noqa: RUF009
  align_layer: int | None = None
  translator: translating.Settings = translating.Settings()  # noqa: RUF009
  translator_neighbours: int = 1
  translator_share: float = 0.05
  beams: int = 1
  language_model: translating.Settings = translating.Settings()  # noqa: RUF009
  contrast: contrastive.Training = contrastive.Training()  # noqa: RUF009
  mining: contrastive.Mining = contrastive.Mining()  # noqa: RUF009

  def __post_init__(self) -> None:
    if unknown := sorted(set(self.parts) - set(PARTS)):
      raise OptionError(f'part {unknown[0]!r}: use some of {", ".join(PARTS)}')
    if not self.parts:
      raise OptionError('no parts: give at least one')
    if 'pseudo' in self.parts and 'wmd' not in self.parts:
      raise OptionError("the part 'pseudo' needs the encoder of 'wmd'")
    if self.weights not in uscore.WEIGHTS:
      raise OptionError(
        f'weights {self.weights!r}: use one of {", ".join(uscore.WEIGHTS)}'
      )
    validation.check(
      validation.Positive,
      OptionError,
      translator_neighbours=self.translator_neighbours,
      beams=self.beams,
    )
    if not 0 < self.translator_share <= 1:
      raise OptionError(
        f'translator_share {self.translator_share}: must be above 0, at most 1'
      )


@dataclasses.dataclass(frozen=True)
class Models:
  """The models that a build starts from.

  Attributes:
    encoder: The encoder that compares words.
    sentence_encoder: The encoder that is trained to compare sentences; None for
      `encoder`.
    translator: A T5 that is trained to translate.
    language_model: A model that is used unchanged; None to train `translator`
      on the targets.
    translations: A file of translations of the sources to be scored, or a
      model that translates, in place of the trained translator.
    layer: Hidden states of `encoder` that are compared.
  """

  encoder: str
  sentence_encoder: str | None = None
  translator: str = 't5score-tiny'
  language_model: str | None = None
  translations: str | None = None
  layer: int = -1


def build(
  folder: str | Path,
  sources: Sequence[str],
  targets: Sequence[str],
  models: Models,
  plan: Plan = Plan(),  # noqa: B008 (frozen)
  *,
  languages: tuple[str, str] = ('', ''),
  parallel: Sequence[Pair] = (),
  work: str | Path | None = None,
  dtype: str = 'float32',
  batch_tokens: int | None = None,
  progress: mining_runs.Progress | None = None,
  say: Say = lambda line: None,
  quiet: bool = True,
) -> uscore.Parts:
  """Builds a metric's folder, or resumes building it.

  Args:
    folder: A new folder for the metric; it appears when it is complete.
    sources: Sentences of the source language, filtered, each once.
    targets: Sentences of the language of the hypotheses, likewise.
    models: The initial models.
    plan: What to build, and how.
    languages: Languages of sources and targets, for example ('de', 'en').
    parallel: Translations to train on in addition, and to estimate the map
      from, by CLP; see appendix C.
    work: A folder for the run; by default `FOLDER.work`, which is removed at
      the end. The same call resumes there.
    dtype: Data type of the encoders' activations.
    batch_tokens: Tokens per batch on one device; bounds memory only.
    progress: Called from time to time.
    say: Called with a line for each finished step.
    quiet: Whether training prints nothing.

  Returns:
    The description of the metric.

  Raises:
    RunError: The work folder belongs to another run.
    InputError: Nothing was mined.
    Stopped: A signal stopped the run; the same call resumes it.
    FileNotFoundError: There is no such model.
  """
  if not (sources and targets):
    raise InputError('no sentences to learn from')
  _check_there(models)
  place = Path(work or f'{folder}.work')
  build = _Build(
    place,
    sources,
    targets,
    models,
    plan,
    languages,
    parallel,
    dtype,
    batch_tokens,
    progress,
    say,
    quiet,
  )
  build.claim()
  parts = build.parts()
  with folders.new_folder(folder) as new:
    uscore.save(_gather(parts, new), new)
  if work is None:
    shutil.rmtree(place)
  return parts


@dataclasses.dataclass(frozen=True)
class _Build:
  """A run; see `build`."""

  place: Path
  sources: Sequence[str]
  targets: Sequence[str]
  models: Models
  plan: Plan
  languages: tuple[str, str]
  parallel: Sequence[Pair]
  dtype: str
  batch_tokens: int | None
  progress: mining_runs.Progress | None
  say: Say
  quiet: bool

  def claim(self) -> None:
    """Creates the work folder, or checks that it is this run's."""
    plan = dataclasses.asdict(self.plan)
    models = dataclasses.asdict(self.models)
    runs.claim(
      self.place,
      _MANIFEST,
      {
        'plan': json.loads(json.dumps(plan)),
        'models': models,
        'languages': list(self.languages),
        'dtype': self.dtype,
        'texts': [
          runs.digest_texts(side) for side in (self.sources, self.targets)
        ],
        'parallel': runs.digest_texts(
          [text for pair in self.parallel for text in pair]
        ),
      },
      'choose another --work or remove it',
    )

  def parts(self) -> uscore.Parts:
    """Builds the parts; their paths are whole."""
    wanted = self.plan.parts
    chosen: dict[str, Any] = {}
    if 'wmd' in wanted:
      chosen |= self._words()
    if 'lm' in wanted:
      chosen['language_model'] = self._language_model()
    if 'sentence' in wanted:
      chosen['sentence_encoder'] = self._sentences()
    found = uscore.Parts(
      uscore.WEIGHTS[self.plan.weights],
      source=self.languages[0],
      target=self.languages[1],
      **chosen,
    )
    return dataclasses.replace(found, weights=found.weights.of(found))

  def _words(self) -> dict[str, Any]:
    """The encoder of words, its map and the pseudo references."""
    bundle = encoders.load_encoder(kinds.folder(self.models.encoder))
    encoder = encoding.TextEncoder(
      bundle,
      remapping.layers(
        self.models.layer, self.plan.align_layer, bundle.config.num_layers
      ),
      batch_tokens=self.batch_tokens,
      dtype=self.dtype,
    )
    about = {
      'encoder': bundle.name,
      'checkpoint': bundles.checkpoint_hash(bundle.params),
      'layer': encoder.layers[-1],
      'source': self.languages[0],
      'target': self.languages[1],
    }
    found = self._map(encoder, about)
    chosen: dict[str, Any] = {
      'encoder': self.models.encoder,
      'layer': encoder.layers[-1],
      'map': str(self.place / 'map') if found else '',
    }
    if 'pseudo' in self.plan.parts:
      given = self.models.translations
      chosen['pseudo_references'] = given or str(
        self._translator(encoder, found)
      )
      if not (given and Path(given).is_file()):
        chosen['beams'] = self.plan.beams
    return chosen

  def _map(
    self, encoder: encoding.TextEncoder, about: dict[str, Any]
  ) -> remap.Map | None:
    if self.plan.remap is None:
      return None
    path = self.place / 'map'
    if not path.is_file():
      if self.parallel:
        settings = dataclasses.replace(self.plan.remap, method='clp')
        found = remapping.from_pairs(
          [source for source, _ in self.parallel],
          [target for _, target in self.parallel],
          encoder,
          about,
          settings,
        )
      else:
        found = remapping.from_texts(
          self._folder('words'),
          self.sources,
          self.targets,
          encoder,
          about,
          self.plan.remap,
          self.progress,
          self.say,
        )
      remap.save(found, path)
    found = remap.load(path)
    self.say(f'map: {found.method} of {found.pairs} word pairs')
    return found

  def _translator(
    self, encoder: encoding.TextEncoder, found: remap.Map | None
  ) -> Path:
    """Trains the translator; returns its folder."""
    path = self.place / 'pairs.jsonl'
    if not path.is_file():
      files.write_lines(path, self._mined(encoder, found))
    pairs = list(translations.read_pairs(path))
    made = self._train_translator(
      pairs, self.models.translator, self.place / 'translator'
    )
    if self.parallel:
      made = self._train_translator(
        self.parallel, str(made), self.place / 'translator_tuned'
      )
    return made

  def _train_translator(
    self, pairs: Sequence[Pair], start: str, folder: Path
  ) -> Path:
    self.say(f'{folder.name}: {len(pairs)} sentence pairs')
    return translating.train(
      pairs,
      start,
      folder,
      self.plan.translator,
      say=self.say,
      quiet=self.quiet,
    ).folder

  def _mined(
    self, encoder: encoding.TextEncoder, found: remap.Map | None
  ) -> Iterator[str]:
    """Yields the pairs to train the translator on, as lines of JSON."""
    plan = self.plan
    how = plan.remap or remapping.Settings()
    pairs = mining_runs.by_distance(
      self._folder('words'),
      self.sources,
      self.targets,
      encoder,
      plan.translator_neighbours,
      found,
      how.backend,
      self.progress,
    )
    pairs = mining_runs.without_copies(
      pairs, self.sources, self.targets, how.max_overlap
    )
    pairs = pairs.first(round(plan.translator_share * len(self.sources)))
    if not len(pairs):
      raise InputError(
        'no sentence pairs were mined: there is nothing to train a translator '
        f'on. translator_share is {plan.translator_share:g} of '
        f'{len(self.sources)} sentences'
      )
    for source, target in zip(pairs.sources, pairs.targets, strict=True):
      row = {'source': self.sources[source], 'target': self.targets[target]}
      yield json.dumps(row, ensure_ascii=False)

  def _language_model(self) -> str:
    if self.models.language_model:
      return self.models.language_model
    return str(
      translating.train_language_model(
        self.targets,
        self.models.translator,
        self.place / 'language_model',
        self.plan.language_model,
        say=self.say,
        quiet=self.quiet,
      ).folder
    )

  def _sentences(self) -> str:
    """Trains the encoder of sentences; returns its folder."""
    start = self.models.sentence_encoder or self.models.encoder
    done = contrastive.rounds(
      self.place / 'rounds',
      self.sources,
      self.targets,
      start,
      self.plan.contrast,
      self.plan.mining,
      progress=self.progress,
      say=self.say,
      quiet=self.quiet,
    )
    if self.parallel:
      done = contrastive.fine_tune(
        self.place / 'tuned',
        self.parallel,
        done[-1].folder,
        self.plan.contrast,
        say=self.say,
        quiet=self.quiet,
      )
    return str(done[-1].folder)

  def _folder(self, name: str) -> Path:
    folder = self.place / name
    folder.mkdir(exist_ok=True)
    return folder


def _check_there(models: Models) -> None:
  """Raises now what would end the run after hours."""
  for name in (
    models.encoder,
    models.sentence_encoder,
    models.translator,
    models.language_model,
  ):
    if name is not None:
      kinds.folder(name)
  if models.translations:
    pseudo_references.PseudoReferences(models.translations)


def _gather(parts: uscore.Parts, folder: Path) -> uscore.Parts:
  """Copies the parts into a folder; returns them with their paths there."""
  names: dict[str, Any] = {}
  for part in parts.names():
    origin = getattr(parts, part)
    # What another package carries is not copied.
    if origin in packaged.NAMES:
      continue
    path = kinds.folder(origin)
    if path.is_dir():
      shutil.copytree(path, folder / part)
      names[part] = part
    else:
      names[part] = part + ''.join(path.suffixes)
      shutil.copyfile(path, folder / names[part])
  return dataclasses.replace(parts, **names)
