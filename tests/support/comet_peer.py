"""Runs unbabel-comet, in an environment of its own: makes and loads models.

    PYTHON comet_peer.py JOBS.json

A job is {'make': settings or None, 'path': folder, 'texts': [{src, mt, ref}]}:
the model is made with these settings and random weights and saved in the folder
as COMET saves its own, or loaded from there; its scores are printed as JSON. Of
metrics that read texts jointly, what `predict_step` returns is printed, all
texts in one batch.
"""

import json
import pathlib
import sys
import warnings

warnings.filterwarnings('ignore')

import pytorch_lightning as lightning  # noqa: E402
import torch  # noqa: E402
import yaml  # noqa: E402
from comet import load_from_checkpoint  # noqa: E402
from comet.encoders import bert  # noqa: E402
from comet.models import UnifiedMetric, str2model  # noqa: E402


def make(settings, folder, texts):
  torch.manual_seed(0)
  kind = settings['class_identifier']
  arguments = {k: v for k, v in settings.items() if k != 'class_identifier'}
  model = str2model[kind](**arguments)
  with torch.no_grad():
    if model.layerwise_attention:
      for n, scalar in enumerate(model.layerwise_attention.scalar_parameters):
        scalar.fill_(0.3 * n)
    if getattr(model, 'word_level', False):
      # Tags that differ from token to token.
      model.eval()
      model.hidden2tag.weight.mul_(20)
      batch = model.prepare_sample(texts, stage='predict')[0]
      mask = batch['label_ids'] != -1
      logits = model(**batch).logits[:, : mask.shape[1]][mask]
      model.hidden2tag.bias.sub_(logits.mean(0))
  trainer = lightning.Trainer(accelerator='cpu', logger=False)
  trainer.strategy.connect(model)
  folder.mkdir(parents=True)
  trainer.save_checkpoint(folder / 'checkpoints' / 'model.ckpt')
  (folder / 'hparams.yaml').write_text(yaml.safe_dump(settings))


class WithPooler(bert.BertModel):
  """BERT as COMET built it before 2.0: since then the pooler is left out."""

  def __init__(self, config, add_pooling_layer=True):
    super().__init__(config, add_pooling_layer=True)


def predict(model, texts):
  """Scores, and by name what COMET says besides, of each text."""
  batch = model.prepare_sample(texts, stage='predict')
  found = model.predict_step(batch)
  said = {'scores': found['scores'].tolist()}
  for name, values in found.get('metadata', {}).items():
    said[name] = values.tolist() if torch.is_tensor(values) else values
  return said


def main():
  bert.BertModel = WithPooler
  results = []
  for job in json.loads(pathlib.Path(sys.argv[1]).read_text()):
    folder = pathlib.Path(job['path'])
    if job['make']:
      make(job['make'], folder, job['texts'])
    model = load_from_checkpoint(folder / 'checkpoints' / 'model.ckpt').eval()
    if isinstance(model, UnifiedMetric):
      with torch.no_grad():
        results.append(predict(model, job['texts']))
      continue
    with torch.no_grad():
      scores = [
        model(**model.prepare_sample([text], stage='predict')).score.item()
        for text in job['texts']
      ]
    results.append(scores)
  print(json.dumps(results))


main()
