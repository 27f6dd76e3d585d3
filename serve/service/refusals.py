"""A request that is not answered with a certificate: the status and the one sentence its sender gets."""

from http import HTTPStatus
from typing import Any

from robustinfer.errors import DeviceError, EngineError, InputError, RobustinferError, SettingError, SignatureError

__all__ = ["Refusal", "refusal_of"]


class Refusal(Exception):  # noqa: N818  (it is an answer, not a failure of this program)
    """An answer that is not a certificate. `code` is for programs and stays the same, `message` is for people."""

    def __init__(self, status: HTTPStatus, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message

    def to_json(self, request_id: str | None) -> dict[str, Any]:
        """The body of the answer."""
        return {"error": {"code": self.code, "message": self.message, "request_id": request_id}}

    @classmethod
    def malformed(cls, code: str, message: str) -> "Refusal":
        """The request cannot be read (400)."""
        return cls(HTTPStatus.BAD_REQUEST, code, message)

    @classmethod
    def unsupported(cls, message: str) -> "Refusal":
        """The body is in no form this server reads (415)."""
        return cls(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported_body", message)

    @classmethod
    def unacceptable(cls, code: str, message: str) -> "Refusal":
        """The request can be read, but its values cannot be used (422)."""
        return cls(HTTPStatus.UNPROCESSABLE_ENTITY, code, message)

    @classmethod
    def unavailable(cls, code: str, message: str) -> "Refusal":
        """The server cannot answer now; trying again later is right (503)."""
        return cls(HTTPStatus.SERVICE_UNAVAILABLE, code, message)


def refusal_of(error: BaseException) -> Refusal:
    """What a client is told about an error. Only errors of this package speak; others could reveal internals."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, InputError):
        return Refusal.unacceptable("bad_image", str(error))
    if isinstance(error, SettingError):
        return Refusal.unacceptable("bad_setting", str(error))
    if isinstance(error, DeviceError):
        return Refusal.unavailable("device_failed", "The device failed; try again.")
    if isinstance(error, EngineError):
        return Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "engine_failed", "The engine failed on this request.")
    if isinstance(error, SignatureError):
        return Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "signing_failed", "The certificate could not be signed.")
    if isinstance(error, RobustinferError):
        return Refusal.unacceptable("refused", str(error))
    if isinstance(error, MemoryError):
        return Refusal.unavailable(
            "out_of_memory", "The server does not have enough memory for this request right now."
        )
    return Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", "The server failed on this request.")
