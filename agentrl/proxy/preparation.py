"""From a completion request to what the engine is sent: one prompt, one Sampling. Whatever cannot be answered is refused here."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentrl.config.proxy import ProxyLimits
from agentrl.engine.protocol import Engine, Sampling
from agentrl.errors import EpisodeError
from agentrl.proxy.call_log import request_digest
from agentrl.proxy.chat_format import ChatFormat, Message, Tool
from agentrl.proxy.completion import CompletionRequest, Json, NamedTool, PreparedCompletion, alterations_of
from agentrl.proxy.errors import ApiError, invalid
from agentrl.proxy.limits import check_count, check_images, check_length, least_tokens
from agentrl.proxy.model_names import ModelNames
from agentrl.proxy.prefill import check_prefill, prefill_ids
from agentrl.proxy.session import Prompt, SamplingDefaults, Session, SessionRole


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Prepares requests for one engine and one model."""

    engine: Engine
    format: ChatFormat
    model: ModelNames
    limits: ProxyLimits
    training: bool = False
    """Whether what no trainer learns from is refused."""
    refuse_altered: bool = False
    """Whether a role that is trained on may not ask for another distribution than the policy's own."""

    @property
    def context_length(self) -> int:
        """Tokens that a prompt and its reply may have together: what the model was made for, or the engine holds, whichever is less."""
        return min(self.format.context_length, self.engine.context_length or self.format.context_length)

    def prepare(self, role: SessionRole, request: CompletionRequest, id_prefix: str) -> PreparedCompletion:
        """Render the prompt and settle how to sample; this may run in a thread.

        Raises:
            ApiError: the request cannot be answered.
        """
        session, role = role.session, self._role(role, request)
        adapter = _adapter(role)
        prompt, tools, forced = self._prompt(session, request)
        self._check_ids([token for token, _ in request.alterations.logit_bias], "logit_bias")
        sampling = self._sampling(session.defaults, request, prompt, tools)
        # Without the engine's bound: a request is known again by other servers, and by a replay, which has none.
        digest = request_digest(prompt.digest, prompt.images, sampling, tools, role.name)
        room = self.context_length - len(prompt.input_ids)
        sampling = replace(sampling, max_new_tokens=min(sampling.max_new_tokens, room))
        if self.refuse_altered and role.trained:
            _check_own_distribution(sampling)
        session.longest_prompt = max(session.longest_prompt, len(prompt.input_ids))
        return PreparedCompletion(
            id=f"{id_prefix}{uuid.uuid4().hex}",
            role=role,
            request=request,
            prompt=prompt,
            sampling=sampling,
            tools=tools,
            forced_ids=forced,
            chat_format=self._template(request),
            digest=digest,
            adapter=adapter,
        )

    def count(self, role: SessionRole, request: CompletionRequest) -> int:
        """Count the tokens of the prompt that a request would be.

        Raises:
            ApiError: the request cannot be answered.
        """
        self.model.check(request.model)
        return len(self._prompt(role.session, request)[0].input_ids)

    def _role(self, asking: SessionRole, request: CompletionRequest) -> SessionRole:
        self.model.check(request.model)
        try:
            return self.model.role(asking, request.model)
        except EpisodeError as error:
            raise ApiError(
                400, f"The model names a role that cannot be: {error}.", param="model", code="invalid_role"
            ) from None

    def _prompt(self, session: Session, request: CompletionRequest) -> tuple[Prompt, list[Tool] | None, list[int]]:
        """Return the prompt, the tools that are in it, and the ids at its end that the model is taken to have said.

        Raises:
            ApiError: 400: the request cannot be answered by this model and engine.
        """
        if self.limits.strict and request.ignored:
            name = request.ignored[0]
            message = f"Unsupported parameter: '{name}'. It would be ignored, which `proxy.strict` refuses."
            raise ApiError(400, message, param=name, code="unsupported_parameter")
        if request.json_schema is not None and not self.engine.has_grammar:
            message = "This engine has no grammar to hold a reply to a JSON format; SGLang has, with --grammar-backend."
            raise ApiError(400, message, param="response_format", code="unsupported_value")
        check_count("n", "replies", request.choices, self.limits.max_choices, "max_choices")
        tools = None if request.tool_choice == "none" else request.tools or None
        self._check_least_length(request, tools)
        forced = self._forced_ids(request)
        if request.raw is not None:
            prompt = self._continued(session, request.raw)
        elif request.continues:
            prompt, begun = self._begun(session, request, tools)
            forced = begun + forced
        else:
            prompt = self._rendered(session, self._template(request), request.messages, tools)
            if forced and self.format.opens_thought(prompt.input_ids):
                forced = self.format.tokenizer.encode("\n</think>\n\n", add_special_tokens=False) + forced
        prompt = prompt.followed_by(forced)
        check_length(len(prompt.input_ids), self.context_length)
        return prompt, tools, forced

    def _check_least_length(self, request: CompletionRequest, tools: list[Tool] | None) -> None:
        """Refuse what cannot fit, before it is tokenised."""
        context, longest = self.context_length, self.format.longest_token
        if isinstance(request.raw, list):
            check_length(len(request.raw), context)
        elif longest is not None and isinstance(request.raw, str):
            check_length(len(request.raw) // longest, context, least=True)
        elif longest is not None:
            check_length(least_tokens(request.messages, tools or (), longest), context, least=True)

    def _continued(self, session: Session, raw: str | list[int]) -> Prompt:
        if isinstance(raw, list):
            self._check_ids(raw, "prompt")
        prompt = session.raw_prompt(self.format, raw)
        if not prompt.input_ids:
            raise invalid("prompt", "it is empty")
        return prompt

    def _check_ids(self, ids: list[int], field: str) -> None:
        # The model may say ids that its tokenizer has no words for: its output layer is often padded.
        vocabulary = self.engine.vocabulary or self.format.vocabulary
        if outside := [token for token in ids if not 0 <= token < vocabulary]:
            raise invalid(field, f"{outside[0]} is outside the vocabulary of {vocabulary} tokens")

    def _begun(
        self, session: Session, request: CompletionRequest, tools: list[Tool] | None
    ) -> tuple[Prompt, list[int]]:
        """Return the prompt before the message that is to be continued, and the ids of that message.

        Raises:
            ApiError: 400: it cannot be continued.
        """
        chat_format, last = self._template(request), check_prefill(request.messages)
        prompt = self._rendered(session, chat_format, request.messages[:-1], tools)
        ids = prefill_ids(chat_format, prompt.input_ids, last)
        return replace(prompt, prefill=last.get("content") or ""), ids

    def _template(self, request: CompletionRequest) -> ChatFormat:
        try:
            return self.format.with_template(request.template_options)
        except ValueError as error:
            raise invalid("chat_template_kwargs", str(error).rstrip(".")) from error

    def _rendered(
        self, session: Session, chat_format: ChatFormat, messages: Sequence[Message], tools: list[Tool] | None
    ) -> Prompt:
        images = [part["image_url"]["url"] for message in messages for part in _images(message)]
        if images:
            self._check_images(images)
        try:
            return session.prompt(chat_format, messages, tools)
        except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
            raise ApiError(400, f"The messages cannot be rendered: {error}", param="messages") from error

    def _check_images(self, urls: list[str]) -> None:
        if not (self.format.takes_images and self.engine.takes_images):
            raise invalid("messages", f"{self.model.served} does not take images")
        if self.training:
            raise invalid(
                "messages",
                "an image is refused in a training run, because its pixels are not trained on yet; `agentrl eval` and "
                "`agentrl serve` take images",
            )
        if any(not url.startswith("data:image/") for url in urls):
            raise invalid("messages", "an image must be a data URL, such as data:image/png;base64,...; none is fetched")
        check_images(urls, self.limits)

    def _forced_ids(self, request: CompletionRequest) -> list[int]:
        if request.tool_choice in ("auto", "none"):
            return []
        names = [tool["function"]["name"] for tool in request.tools or []]
        if not names:
            raise ApiError(400, "'tool_choice' needs 'tools'.", param="tool_choice", code="invalid_value")
        name = request.tool_choice.name if isinstance(request.tool_choice, NamedTool) else None
        if name is not None and name not in names:
            message = f"'tool_choice' names {name!r}; the tools are {names}."
            raise ApiError(400, message, param="tool_choice", code="invalid_value")
        try:
            return self.format.forced_call(name)
        except ValueError as error:
            raise ApiError(400, f"'tool_choice' is not supported: {error}.", param="tool_choice") from error

    def _sampling(
        self, defaults: SamplingDefaults, request: CompletionRequest, prompt: Prompt, tools: list[Tool] | None
    ) -> Sampling:
        room = self.format.context_length - len(prompt.input_ids)
        if defaults.is_bound and defaults.max_tokens:
            room = min(room, defaults.max_tokens)
        stop_ids = self.format.stop_token_ids
        if tools and not request.parallel_tool_calls and self.format.call_end_id is not None:
            stop_ids = [*stop_ids, self.format.call_end_id]
        return Sampling(
            max_new_tokens=min(request.max_tokens or defaults.max_tokens or room, room),
            temperature=defaults.temperature if request.temperature is None else request.temperature,
            top_p=defaults.top_p if request.top_p is None else request.top_p,
            stop=request.stop,
            stop_token_ids=stop_ids,
            seed=request.seed,
            top_logprobs=request.top_logprobs,
            json_schema=request.json_schema,
            **vars(request.alterations),
        )


def _adapter(role: SessionRole) -> str:
    try:
        return role.adapter
    except EpisodeError as error:
        remedy = 'ask as one: `episode.role("NAME")`, the key KEY.NAME, or a name of the model that `proxy.model_names` maps to role:NAME'
        raise ApiError(400, f"Which policy is to answer? {error}; {remedy}.", code="invalid_role") from None


def _check_own_distribution(sampling: Sampling) -> None:
    asked = alterations_of(sampling)
    if asked:
        field = "response_format" if "json_schema" in asked else next(iter(asked))
        problem = (
            "it changes the distribution that is sampled from, so that the reply could not be trained on as the policy's own, which "
            'trainer.turns.altered_sampling = "refuse" forbids'
        )
        raise invalid(field, problem)


def _images(message: Message) -> list[Json]:
    content = message.get("content")
    return [part for part in content if part["type"] == "image_url"] if isinstance(content, list) else []
