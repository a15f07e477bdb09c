"""The bodies of SGLang's requests, as far as the embedded server honours them."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError


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
    load_format: str | None = None
    weight_version: str | None = None
    flush_cache: bool = True
    abort_all_requests: bool = False


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
