"""SGLang's requests and replies, as far as the embedded server honours them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentrl.engine.embedded.batching import BatchingEngine
from agentrl.engine.embedded.sampling import Request
from agentrl.engine.protocol import Sampling


class Strict(BaseModel):
    """A request that is refused when it holds an unknown field, by the name of that."""

    model_config = ConfigDict(extra="forbid")


class SamplingParams(Strict):
    """The fields of SGLang's `sampling_params` that this server honours; any other is refused by name."""

    max_new_tokens: Annotated[int, Field(ge=0)] = 128
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=1)] | Literal[-1] = -1
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] = 1.0
    logit_bias: dict[int, Annotated[float, Field(allow_inf_nan=False)]] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    sampling_seed: int | None = None
    stream_interval: Annotated[int, Field(ge=1)] = 1
    ignore_eos: bool = False
    skip_special_tokens: bool = True


class GenerateBody(Strict):
    """`POST /generate`."""

    input_ids: Annotated[list[int], Field(min_length=1)]
    sampling_params: SamplingParams = SamplingParams()
    rid: str | None = None
    session_id: str | None = None
    return_logprob: bool = False
    logprob_start_len: Annotated[int, Field(ge=-1)] = -1
    top_logprobs_num: Annotated[int, Field(ge=0)] = 0
    lora_path: Annotated[str, Field(min_length=1)] | None = None
    extra_key: str | None = None
    """Which requests' prefixes it may share: of no effect, since no weight update leaves a cached prefix behind here."""
    stream: bool = False


class AbortBody(Strict):
    """`POST /abort_request`."""

    rid: str = ""
    abort_all: bool = False


class PauseBody(Strict):
    """`POST /pause_generation`."""

    mode: Literal["abort", "retract", "in_place"] = "abort"


class UpdateBody(Strict):
    """`POST /update_weights_from_disk`."""

    model_path: str
    weight_version: str | None = None
    flush_cache: bool = True
    abort_all_requests: Literal[False] = False


class AdapterBody(Strict):
    """`POST /load_lora_adapter`, and `/unload_lora_adapter`, which needs the name alone."""

    lora_name: Annotated[str, Field(min_length=1)]
    lora_path: str = ""
    pinned: bool = False


class RefusedError(Exception):
    """A request that is wrong; its message goes to the client with status 400."""


Body = TypeVar("Body", bound=Strict)


async def parse(http: web.Request, model: type[Body]) -> Body:
    """Return the body of a request.

    Raises:
        RefusedError: Fields, which the message names, are wrong.
    """
    try:
        return model.model_validate_json(await http.read() or b"{}")
    except ValidationError as error:
        raise RefusedError("; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())) from None


def sampling_of(body: GenerateBody, engine: BatchingEngine) -> Sampling:
    """Return how a reply is drawn: within the context, and ended as the model ends it."""
    params = body.sampling_params
    same = {"temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"}
    return Sampling(
        **params.model_dump(include=same),
        max_new_tokens=min(params.max_new_tokens, engine.context_length - len(body.input_ids)),
        logit_bias=list((params.logit_bias or {}).items()),
        stop=[params.stop] if isinstance(params.stop, str) else params.stop or [],
        stop_token_ids=[] if params.ignore_eos else [*engine.end_ids, *(params.stop_token_ids or [])],
        seed=params.sampling_seed,
        top_logprobs=body.top_logprobs_num if body.return_logprob else 0,
    )


def check(body: GenerateBody, engine: BatchingEngine) -> None:
    """Refuse a request that cannot be answered, in SGLang's words where it has them.

    Raises:
        RefusedError: The message says why.
    """
    length, vocabulary = engine.context_length, engine.vocabulary
    if len(body.input_ids) >= length:
        raise RefusedError(
            f"The input ({len(body.input_ids)} tokens) is longer than the model's context length ({length} tokens)."
        )
    if outside := [token for token in body.input_ids if not 0 <= token < vocabulary]:
        raise RefusedError(f"input_ids holds {outside[0]}, outside the vocabulary of {vocabulary} tokens.")
    if strange := [token for token in body.sampling_params.logit_bias or () if not 0 <= token < vocabulary]:
        raise RefusedError(f"logit_bias must has keys in [0, {vocabulary - 1}], got {strange[0]}.")
    if body.sampling_params.max_new_tokens > 0 and body.logprob_start_len >= 0:
        raise RefusedError("logprob_start_len is for max_new_tokens = 0 here: a prompt is scored or continued.")
    if body.lora_path and not engine.adapters.was_loaded(body.lora_path):
        raise RefusedError(f"Got LoRA adapter that has never been loaded: {body.lora_path}")


def reply_of(body: GenerateBody, request: Request, engine: BatchingEngine, rid: str, start: int = 0) -> dict[str, Any]:
    """Return a reply as it is now: its tokens from `start` on."""
    finish, count = request.finish, len(request.output_ids)  # in this order: the generation thread goes on meanwhile
    ids = request.output_ids[start:count]
    meta: dict[str, Any] = {
        "id": rid,
        "finish_reason": finish,
        "prompt_tokens": len(request.input_ids),
        "completion_tokens": count,
        "cached_tokens": request.cached_tokens or 0,
        "weight_version": request.version_starts[-1][0] if request.version_starts else engine.version,
        "weight_versions": request.weight_versions(count),
    }
    if body.return_logprob:
        scored = zip(request.logprobs[start:count], ids, strict=True)
        meta["output_token_logprobs"] = [[logprob, token, None] for logprob, token in scored]
    if body.return_logprob and body.top_logprobs_num:
        meta["output_top_logprobs"] = [
            [[logprob, token, None] for logprob, token in top] for top in request.top_logprobs[start:count]
        ]
    text = str(engine.tokenizer.decode(ids, skip_special_tokens=body.sampling_params.skip_special_tokens))
    if finish is not None and isinstance(matched := finish.get("matched"), str):
        text = text.partition(matched)[0]
    return {"text": text, "output_ids": ids, "meta_info": meta}
