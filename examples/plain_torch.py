"""A plain torch loop on the stream of a job: no cluster, no services, a model of one's own, and
exact resume.

    python examples/make_corpus.py
    python examples/plain_torch.py examples/stdlib.yaml --steps 5

The batches are those that `cox run examples/stdlib.yaml` trains on, token for token; the digests
prove it. Needs the extras `data` and `train`. Run it again and it goes on behind the last step that
it saved.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from coxswain.digests import STREAM_SEED
from coxswain.errors import CoxswainError
from coxswain.uris import file_uri
from coxswain_train.dataset import StepBatch, StreamDataset, stream_digest


class Gru(nn.Module):
    """Any model will do that turns token ids [n] into logits [n, vocabulary]."""

    def __init__(self, vocabulary: int, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.gru(self.embedding(tokens[None]))
        return self.head(hidden[0])


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: StepBatch) -> float:
    """One update.

    The sum of all token losses is divided once: a mean of means would weigh short sequences more.
    """
    optimizer.zero_grad()
    loss = 0.0
    for tokens, labels in step.sequences():
        part = functional.cross_entropy(model(tokens), labels, ignore_index=-100, reduction="sum") / step.total_labels
        part.backward()
        loss += part.item()
    optimizer.step()
    return loss


def restore(saved: Path, model: nn.Module, optimizer: torch.optim.Optimizer, dataset: StreamDataset) -> str:
    """The stream digest of the checkpoint, whose state all three have then."""
    try:
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        data, digest = dict(state["data"]), str(state["digest"])
    except Exception as error:  # a file may be damaged in a dozen ways
        raise SystemExit(f"{saved} is no checkpoint of this program ({error}); delete it to start again") from error
    dataset.load_state_dict(data)
    return digest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="YAML with one TrainingJob and what it refers to")
    parser.add_argument("--steps", type=int, default=20, help="where to stop, counted from step 0")
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/plain"), help="for the block index and the checkpoint"
    )
    parser.add_argument("--workers", type=int, default=0, help="processes that read ahead")
    options = parser.parse_args()

    folder: Path = options.folder.resolve()
    dataset = StreamDataset.of_files([options.file], cache=file_uri(folder / "index"), steps=options.steps)
    model = Gru(dataset.vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    saved = folder / "checkpoint.pt"
    digest = restore(saved, model, optimizer, dataset) if saved.exists() else STREAM_SEED

    for step in dataset.loader(options.workers):  # the dataset was restored first: workers get copies of it
        loss = train_step(model, optimizer, step)
        digest = stream_digest(digest, [step])
        print(f"step {step.step} loss {loss:.4f} tokens {len(step.tokens)} digest {digest}", flush=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": step.state, "digest": digest}
        torch.save(state, saved.with_suffix(".new"))
        saved.with_suffix(".new").replace(saved)  # whole or not at all


if __name__ == "__main__":
    try:
        main()
    except CoxswainError as error:
        raise SystemExit(f"{error.reason}: {error}") from error
    except KeyboardInterrupt:  # the same command goes on behind the last step
        raise SystemExit(130) from None
