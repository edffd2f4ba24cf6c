"""Every error the product raises, in one hierarchy. Each message names the thing, the value, what was expected and the next step."""

from __future__ import annotations

from typing import ClassVar, Self


class PoisonError(Exception):
    """Root of all errors of this package."""


def recalled(name: str, text: str) -> PoisonError:
    """Return an error of this package by its name, as it was raised in another process."""
    kind = globals().get(name, PoisonError)
    try:
        error = kind(text)
    except TypeError:  # made of several parts that the text does not have
        return PoisonError(text)
    return error if isinstance(error, PoisonError) else PoisonError(text)


# Settings and input ---------------------------------------------------------------------------------------------


class SettingError(PoisonError, ValueError):
    """A setting has a value that the messaging system does not allow (spec WCF-11)."""

    def __init__(self, setting: str, value: object, allowed: str) -> None:
        super().__init__(f"{setting}={value!r} is not allowed; allowed: {allowed}.")
        self.setting, self.value, self.allowed = setting, value, allowed

    def __reduce__(self) -> tuple[type[SettingError], tuple[str, object, str]]:
        return type(self), (self.setting, self.value, self.allowed)


class SystemChangeError(PoisonError):
    """A policy of another messaging system than the queue's is declared for it; nothing changed, and nothing was received or sent."""


class MaxQueueReadersError(SettingError):
    """``max_queue_readers`` is out of range (spec SB-23, SB-E14: error 187)."""

    number: ClassVar[int] = 187


class HandlerNotFoundError(PoisonError):
    """A handler cannot be imported or called; raised before anything is claimed."""


class HandlerNotRunError(PoisonError, TypeError):
    """A handler returned something whose code has not run: an awaitable or a generator. Its message is rolled back."""


class OutputRowError(PoisonError, ValueError):
    """A row that a handler returned does not fit its output. Its message is rolled back."""


class OutputError(PoisonError):
    """An output cannot take rows: it cannot be reached, or its columns are others now. The rows wait in the queue's own table."""


class BodyError(PoisonError, ValueError):
    """A body does not fit the schema of its batch; its message is rolled back without a call of the handler."""


class TransformError(PoisonError):
    """A transformation cannot be run as it is declared; nothing was claimed, or nothing of the claim was counted."""


class ErrorHandlerError(PoisonError, TypeError):
    """An error handler class cannot be used: wrong interface or no constructor without parameters (spec WCF-27)."""


class InputError(PoisonError, ValueError):
    """What was given to a send cannot become messages; nothing was sent."""


class MessageTooLargeError(InputError):
    """A message is above the size limit; nothing was sent."""


class SourceError(PoisonError):
    """What is new in a source cannot be read: no server, no rights, a wrong name, a position that it has no more. Nothing was sent."""


class SourceTakenError(PoisonError):
    """Another task has taken from the source meanwhile. Nothing was sent."""


class MalformedError(PoisonError, ValueError):
    """A record is not what its source's schema says. It becomes a message with this error."""


class DeadLetterHeaderError(PoisonError, ValueError):
    """Bytes are no dead-letter header of WebSphere MQ (spec WMQ-25)."""


# Queues and tables ----------------------------------------------------------------------------------------------


class QueueNotFoundError(PoisonError, LookupError):
    """No queue of this name exists in the store."""


class QueueNameError(PoisonError, ValueError):
    """A name cannot be a queue's name."""


class QueueHaltedError(PoisonError):
    """The queue's endpoint is disabled, stopped or faulted: it does not receive until it is enabled.

    :cvar number: what Service Broker calls it (spec SB-18).
    """

    number: ClassVar[int] = 9617


class MessageNotFoundError(PoisonError, LookupError):
    """No message with this lookup id is in the queue."""


class MessageClaimedError(PoisonError):
    """A pass has claimed the message, so it cannot be changed now."""


class PlanNotFoundError(PoisonError, LookupError):
    """No plan has this id in the queue; nothing has changed."""


class PlanStateError(PoisonError):
    """A plan is paused, done, cancelled or undone where it has to be another; nothing has changed."""


class PlanUnreadableError(PoisonError):
    """What a recorded plan says cannot be read; nothing is done by it."""


class QueryError(PoisonError, ValueError):
    """A condition or a query on messages is no SQL that can be answered here; nothing has changed."""


class QueryTimeoutError(QueryError):
    """A query on messages has taken longer than it may where others' queries run, too; nothing has changed."""


class DecisionOutdatedError(PoisonError):
    """What people decided about a halted queue does not fit it any more: it receives, or something else has halted it meanwhile."""


class ReceiveStoppedError(PoisonError):
    """A pass was asked to stop, because its task ends. It gives its claim up; any next run goes on where it stopped."""

    @classmethod
    def of(cls, key: str) -> Self:
        """Return the error of the pass with a run key."""
        return cls(f"The pass {key} was stopped. Its claim stays: run it again, it goes on where it stopped.")


class QueuesFailedError(PoisonError):
    """Passes over some of several queues failed. What the passes over the others did is committed."""


class StoreUnreachableError(PoisonError):
    """The store's root cannot be read or written."""


class StoreConditionError(PoisonError):
    """The object store ignores a condition of requests on which queues depend; no queue was made."""


class NewerFormatError(PoisonError):
    """The queue's table was written by a newer version of this package."""


class TableChangedError(PoisonError):
    """Another program changed the table under a running pass. Nothing was committed; the stage is kept."""


class CheckpointDamagedError(TableChangedError):
    """A checkpoint of the table's log is damaged or gone. No message is concerned: the next verb that writes sets it aside."""


class ClaimLostError(PoisonError):
    """The claim of this pass expired and was taken over. This pass changes nothing."""


class ConservationError(PoisonError):
    """A pass read a number of messages that does not equal settled plus remaining. Nothing was committed."""


class AlertError(PoisonError):
    """A notifier failed. What the passes did is committed; the alert is given again by the next run."""


# Conversations --------------------------------------------------------------------------------------------------


class ConversationError(PoisonError):
    """A verb on a conversation, a service or a contract is refused; nothing changed.

    :ivar number: Service Broker's number of the error (spec section 1.7); None for an error that only this package knows.
    """

    number: int | None = None


class ConversationNotFoundError(ConversationError, LookupError):
    """No conversation endpoint has this handle: it never had one, or it has ended (spec section 1.7, SB-49)."""

    number = 8426


class ConversationEndedError(ConversationError):
    """END CONVERSATION on an endpoint that has been ended already (spec SB-E13)."""

    number = 8427


class ConversationSendError(ConversationError):
    """SEND on a conversation whose endpoint may not send: it or its partner has ended it, or an Error has arrived (spec SB-43).

    :param state: the state of the endpoint, two letters (spec SB-55).
    """

    number = 8429

    def __init__(self, message: str, state: str = "") -> None:
        super().__init__(message)
        self.state = state


class ConversationTimerError(ConversationError):
    """BEGIN CONVERSATION TIMER on an endpoint that can have none any more (spec section 1.7)."""

    number = 8458


class RetentionError(ConversationError):
    """SEND on a conversation whose own queue is disabled and retains messages (spec SB-20)."""

    number = 9618


class ConversationLockedError(ConversationError):
    """A pass holds the conversation's group, so the conversation cannot be changed now (spec SB-47, SB-53)."""


class ServiceNotFoundError(ConversationError, LookupError):
    """No service of this name is on a queue of the store. A remote one that is missing is a broker's Error, code -8490 (spec section 1.7)."""

    number = 8423


class ErrorDocumentError(ConversationError, ValueError):
    """A document is no Error message of Service Broker (spec SB-39, SB-E11)."""


# Environment ----------------------------------------------------------------------------------------------------


class JavaError(PoisonError):
    """Java is missing or too old for Spark."""


class SparkDistributionError(PoisonError):
    """Spark cannot be imported, or several pyspark distributions of different versions are mixed in one environment."""


class SparkConnectError(PoisonError):
    """A Spark Connect server cannot be reached, or does not fit this environment."""


class ExecutorError(PoisonError):
    """Spark's executors lack what a pass needs there: this package, the handler, or the store. Nothing was claimed and nothing was sent."""


class SparkJobError(PoisonError):
    """The Spark job of a pass failed. Nothing was committed; the next run goes on where it stopped."""


class ServerSessionError(PoisonError):
    """The child process that runs the handler cannot be started or kept running."""


# What a policy says ---------------------------------------------------------------------------------------------


class PoisonMessageError(PoisonError):
    """A message became poison; carries its lookup id (spec WCF-18, the MsmqPoisonMessageException of WCF)."""

    def __init__(self, lookup_id: int, queue: str = "") -> None:
        super().__init__(f"Message {lookup_id} of queue {queue!r} has exceeded its delivery attempts.")
        self.lookup_id, self.queue = lookup_id, queue

    def __reduce__(self) -> tuple[type[PoisonMessageError], tuple[int, str]]:
        return type(self), (self.lookup_id, self.queue)


class ConfigurationWarning(UserWarning):
    """Settings that are allowed and rarely wanted (for example spec WCF-43)."""


class ConfigurationHint(ConfigurationWarning):
    """Settings that do what they say, and that may still do what their author does not expect (for example spec WMQ-16)."""
