"""``headcount train``: one clear line for bad values without PyTorch, a judged model with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headcount
from headcount.cli.main import dispatch
from headcount.errors import HeadcountError

Ask = Callable[[str], dict[str, Any]]

SOURCE = str(Path(headcount.__file__).parents[1])
TINY = "--steps 12 --batch 8 --length 6 --width 16 --layers 1 --heads 2"


def run(command: str, *, code: str = "") -> subprocess.CompletedProcess[str]:
    """The command in a fresh interpreter; ``code`` runs before it."""
    start = f"{code}\nimport sys; from headcount.cli.main import run; run()"
    return subprocess.run(
        [sys.executable, "-c", start, *command.split()],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"},
    )


def refused(command: str, *, code: str = "") -> str:
    done = run(command, code=code)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("package", ["torch", "safetensors", "tokenizers", "tqdm", "jaxtyping"])
def test_a_missing_package_is_named(package: str) -> None:
    words = refused("train copy", code=f"import sys; sys.modules[{package!r}] = None")
    # Without PyTorch installed, that is what is missing first.
    assert "which is not installed: pip install 'headcount[transformer]'" in words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("", "the following arguments are required: TASK_OR_FILE"),
        ("copy --steps 0", "--steps must be 1 to"),
        ("copy --steps 1.5", "--steps must be a whole number"),
        ("copy --batch x", "--batch 'x' is not a number"),
        ("copy --lr 0", "--lr must be 1e-09 to 10"),
        ("copy --lr -1", "--lr must be 1e-09 to 10"),
        ("copy --clip nan", "--clip 'nan'"),
        ("copy --dropout 1", "--dropout must be 0 to 0.99"),
        ("copy --label-smoothing 1", "--label-smoothing must be 0 to 0.99"),
        ("copy --threads 0", "--threads must be 1 to"),
        ("copy --seed -1", "--seed must be 0 to"),
        ("copy --step 5", "nearest: --steps"),
        ("copy reverse", "unexpected argument 'reverse'"),
    ],
)
def test_bad_values_need_no_pytorch(options: str, words: str) -> None:
    assert words in refused(f"train {options}", code="import sys; sys.modules['torch'] = None")


def test_help_and_completion_need_no_pytorch() -> None:
    blocked = "import sys; sys.modules['torch'] = None"
    shown = run("train --help", code=blocked)
    assert shown.returncode == 0 and "--label-smoothing" in shown.stdout
    script = run("completion bash", code=blocked)
    assert script.returncode == 0 and "train) words=" in script.stdout and "reverse" in script.stdout


@pytest.mark.transformer
def test_tasks_are_the_toys() -> None:
    from headcount.cli.train import TASKS
    from headcount.transformer.training.toys import TOYS

    assert list(TASKS) == list(TOYS)


@pytest.mark.transformer
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("copi", "unknown task 'copi'; nearest: copy; or the path of a text file, which is not here"),
        ("missing/file.txt", "unknown task 'missing/file.txt'"),
        (".", "cannot be read: Is a directory"),
        ("copy --norm before", "unknown placement of the norms 'before'"),
        ("copy --kernel flash", "unknown attention kernel 'flash'"),
        ("copy --schedule cosin", "unknown schedule 'cosin'; nearest: cosine"),
        ("copy --width 30", "width 30 does not divide into 4 heads"),
        ("copy --width 9 --heads 3", "need an even width"),
        ("copy --kv-heads 3", "4 query heads do not divide among 3 key/value heads"),
        ("copy --accumulate 3", "batch 64 does not divide into 3 parts"),
        ("copy --length 2", "length must be 3 to 512"),
        ("copy --parallel ddp", "--parallel ddp runs under torchrun"),
        ("copy --parallel tp", "unknown kind of parallel training 'tp'"),
        ("copy --resume", "--resume needs --checkpoint DIR"),
        ("copy --resume --checkpoint nowhere", "no checkpoint here"),
        ("copy --checkpoint /dev/null/x --steps 1 --width 8", "cannot be written"),
    ],
)
def test_bad_choices(options: str, words: str) -> None:
    with pytest.raises(HeadcountError) as caught:
        dispatch(["train", *options.split()])
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.transformer
def test_a_toy_as_page_and_as_json(ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["train", "copy", *TINY.split()]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("copy: encoder-decoder, 1 + 1 blocks, 16 wide, ")
    assert "gradients by hand" in out and "% exact on 500 strings never trained on" in out
    assert "step 12 of 12  loss" in err
    answers = [ask(f"train copy {TINY} {more}") for more in ("", "--autograd", "--kernel tiled")]
    assert answers[0]["losses"] == pytest.approx(answers[1]["losses"], abs=1e-5)
    assert answers[0]["losses"] == pytest.approx(answers[2]["losses"], abs=1e-5)
    assert answers[0]["kind"] == "encoder-decoder" and answers[0]["held_out"]["strings"] == 500
    # One table of 40 rows; attention 4 (16 x 16 + 16), feed-forward 2 x 16 x 64 + 64 + 16, norms 2 x 16.
    attention, feed_forward, norm = 4 * (16 * 16 + 16), 2 * 16 * 64 + 80, 32
    assert answers[0]["parameters"] == 40 * 16 + 3 * attention + 2 * feed_forward + 5 * norm


@pytest.mark.transformer
@pytest.mark.parametrize("tokens", ["bytes", "bpe"])
def test_a_text_file(tmp_path: Path, tokens: str, ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{n} green bottles hanging on the wall.\n" for n in range(200)))
    answer = ask(f"train {path} {TINY} --tokens {tokens}")
    assert answer["kind"] == "decoder-only" and answer["losses"][-1] < answer["losses"][0]
    assert 0 < answer["held_out"]["bits_per_byte"] < 9 and answer["examples"][0]["sample"]
    dispatch(["train", str(path), *TINY.split(), "--tokens", tokens])
    out = capsys.readouterr().out
    assert "bits per byte, perplexity" in out and "sample" in out


@pytest.mark.transformer
def test_resume(tmp_path: Path, ask: Ask) -> None:
    options = f"train sort {TINY} --dropout 0.1 --schedule constant"
    whole = ask(options)
    half = options.replace("--steps 12", "--steps 7") + f" --checkpoint {tmp_path}/run"
    ask(half)
    with pytest.raises(HeadcountError, match="holds step 7 already; --resume continues it"):
        ask(half)
    resumed = ask(f"{options} --checkpoint {tmp_path}/run --resume")
    assert resumed["losses"] == whole["losses"] and resumed["steps_taken"] == 5


@pytest.mark.transformer
@pytest.mark.slow
@pytest.mark.parametrize("task", ["copy", "reverse", "sort"])
def test_the_toys_are_learnt(task: str) -> None:
    """With the defaults, in about a minute on two cores: 99 % exact on strings never trained on."""
    done = subprocess.run(
        [sys.executable, "-m", "headcount", "train", task, "--json"],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert json.loads(done.stdout)["held_out"]["exact"] >= 0.99
