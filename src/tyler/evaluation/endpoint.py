"""Any model behind an OpenAI-compatible server: `tyler eval --endpoint http://host:port/v1 --model NAME`.

Answers are kept and graded like any other. The key is read from the environment variable OPENAI_API_KEY.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyler.engine.sampling import Sampling, seed_of
from tyler.evaluation.answers import FAILED, Answer
from tyler.evaluation.options import Answering, EndpointOptions
from tyler.runs.checkpoints import RunError
from tyler.tasks import Problem
from tyler.tasks.data_files import read_rows
from tyler.tasks.prompts import Message, Prompt

if TYPE_CHECKING:
    from openai import OpenAI
    from openai.types.chat import ChatCompletion

KEY = "OPENAI_API_KEY"
BY_ITSELF, OF_ALL = (400, 413, 422), (401, 403, 429, 502, 503, 504)
"""The statuses with which a server refuses one request and not its like, and those with which it refuses any."""


class EndpointError(RunError):
    """The server cannot be used as it is; the message says what to do. What it has answered is kept."""


@dataclass(frozen=True)
class Endpoint:
    """A model on a server, and how it is asked."""

    options: EndpointOptions
    prompt: Prompt
    sampling: Sampling
    max_new_tokens: int
    weights: str
    examples: tuple[Message, ...] = ()

    @classmethod
    def of(cls, options: EndpointOptions, answering: Answering) -> Endpoint:
        """What the command line asks; of `tyler serve` with the model's own instruction.

        Raises ValueError for a file of examples that cannot be read, EndpointError for a server that cannot be used.
        """
        about = described(options)
        prompt = Prompt(instruction=about["instruction"]) if "instruction" in about else Prompt()
        examples = () if options.few_shot is None else read_examples(options.few_shot, prompt)
        weights = about.get("weights", "not known: behind an endpoint")
        return cls(options, prompt, answering.sampling, answering.max_new_tokens, weights, examples)

    def settings(self) -> dict[str, Any]:
        """What decides the answers, as far as this side knows it."""
        examples = hashlib.sha256(json.dumps(self.examples).encode()).hexdigest()[:16]
        return {
            "model": self.options.model,
            "endpoint": self.options.endpoint,
            "weights": self.weights,
            "method": "endpoint",
            "method_settings": {},
            "max_new_tokens": self.max_new_tokens,
            "sampling": asdict(self.sampling),
            "instruction": self.prompt.instruction,
            **({"few_shot": f"{len(self.examples) // 2} examples, sha256 {examples}"} if self.examples else {}),
        }

    def ask(self, problems: Sequence[Problem], answered: Callable[[Answer], None]) -> None:
        """Ask every problem, several at once; `answered` is called with each answer as soon as it is there.

        A request that the server refuses by itself becomes an answer that failed. Raises EndpointError
        where the server is not there, not ready after all retries, or not an API; then no further request is sent.
        """
        with client_of(self.options) as client, ThreadPoolExecutor(self.options.concurrency) as threads:
            waiting = {threads.submit(self.answer, client, problem) for problem in problems}
            try:
                for request in as_completed(tuple(waiting)):
                    waiting.remove(request)
                    answered(request.result())
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                for request in waiting:  # what was under way is kept too
                    if not request.cancelled() and request.exception() is None:
                        answered(request.result())
                raise

    def answer(self, client: OpenAI, problem: Problem) -> Answer:
        """One request."""
        import openai

        seed = seed_of(self.sampling.seed, problem.task, problem.id, problem.sample)
        turns = [*self.examples, *self.prompt.turns(problem)]
        started = time.perf_counter()
        try:
            completion = client.chat.completions.create(
                model=self.options.model,
                messages=turns,  # type: ignore[arg-type]
                max_completion_tokens=self.max_new_tokens,
                **sampling_arguments(self.sampling, seed),
            )
            text, ended, usage = read_completion(completion, self.options.endpoint)
        except openai.APIError as error:
            if getattr(error, "status_code", None) not in BY_ITSELF:
                raise stopped(self.options, error) from error
            text, ended, usage = "", f"{FAILED}: {error}", (0, 0)
        return Answer.to(
            problem,
            seed=seed,
            text=text,
            finish_reason=ended,
            invocations=None,
            seconds=time.perf_counter() - started,
            visible_tokens=usage[0],
            latents=usage[1],
        )


def client_of(options: EndpointOptions) -> OpenAI:
    """A client whose key is from the environment. Raises ValueError where the package is not installed."""
    try:
        from openai import OpenAI
    except ImportError as error:
        raise ValueError(
            f"--endpoint needs the package openai ({error}); pip install 'tyler-reasoning[endpoint]'"
        ) from None
    key = os.environ.get(KEY) or "none"
    return OpenAI(base_url=options.endpoint, api_key=key, timeout=options.timeout, max_retries=options.retries)


def described(options: EndpointOptions) -> dict[str, Any]:
    """What `tyler serve` says of its model; nothing of another server."""
    with client_of(options) as client:
        import openai

        try:
            model = client.models.retrieve(options.model)
        except openai.APIError as error:
            if isinstance(error, openai.APIConnectionError) or getattr(error, "status_code", None) in OF_ALL:
                raise stopped(options, error) from error
            return {}  # of another server; where it has no such model, the first question says what to do
    about = getattr(model, "tyler", None)
    return about if isinstance(about, dict) else {}


def sampling_arguments(sampling: Sampling, seed: int) -> dict[str, Any]:
    """How an answer is drawn, in the API's names; greedy needs no seed."""
    if sampling.greedy:
        return {"temperature": 0.0}
    drawn: dict[str, Any] = {"temperature": sampling.temperature, "seed": seed % 2**31}
    if sampling.top_p < 1:
        drawn["top_p"] = sampling.top_p
    if sampling.top_k:
        drawn["extra_body"] = {"top_k": sampling.top_k}
    return drawn


def read_completion(completion: ChatCompletion, endpoint: str) -> tuple[str, str, tuple[int, int]]:
    """The text, why it ended, and its tokens. Raises EndpointError for anything but a completion, such as HTML."""
    choices = getattr(completion, "choices", None)
    if not choices or choices[0].message is None:
        raise EndpointError(
            f"{endpoint} answers with something else than a completion ({str(completion)[:60]!r}); give the address "
            "of the API, which mostly ends in /v1"
        )
    choice, usage = choices[0], completion.usage
    details = None if usage is None else usage.completion_tokens_details
    latents = (details.reasoning_tokens or 0) if details is not None else 0
    tokens = (0, 0) if usage is None else (usage.completion_tokens - latents, latents)
    ended = {"stop": "eos"}.get(choice.finish_reason, choice.finish_reason)
    return choice.message.content or "", str(ended), tokens


def stopped(options: EndpointOptions, error: Exception) -> EndpointError:
    """What to do where the server does not answer, or with an error."""
    import openai

    status = getattr(error, "status_code", None)
    if status in (401, 403):
        what = f"refuses the key; set {KEY}"
    elif status == 404:
        what = f"has no model {options.model!r} or is not the API; check --model, and that the address ends in /v1"
    elif status == 429:
        what = (
            f"still answers 429 (too many requests) after {options.retries} retries; lower --concurrency "
            f"{options.concurrency} or wait"
        )
    elif status is not None:
        what = f"answers with status {status} after {options.retries} retries: {str(error)[:200]}"
    elif isinstance(error, openai.APITimeoutError):
        what = f"gave no answer within {options.timeout:g} s; give a longer --timeout or a lower --concurrency"
    elif isinstance(error, openai.APIConnectionError):
        what = f"cannot be reached ({error.__cause__ or error}); start the server or check the address"
    else:
        what = f"does not answer as the API does ({str(error)[:80]}); the address mostly ends in /v1"
    return EndpointError(f"{options.endpoint} {what}; answers so far are kept, and the same command asks the others")


def read_examples(path: Path, prompt: Prompt) -> tuple[Message, ...]:
    """The turns of worked examples, from rows with `problem` and `solution`."""
    turns: list[Message] = []
    for row in read_rows(path):
        turns += prompt.turns(row.text("problem"))
        turns.append(Message(role="assistant", content=row.text("solution")))
    if not turns:
        raise ValueError(f"--few-shot {path} holds no examples; each line has a problem and a solution")
    return tuple(turns)
