"""Every error this package raises on purpose.

RobustinferError
├── InputError                an image that breaks the input contract (pixels in [0,1], or uint8)
│   ├── ShapeError            wrong number of axes, channels, height or width
│   ├── DtypeError            neither uint8 nor a floating type
│   ├── PixelRangeError       a pixel outside [0,1], or one that is NaN or infinite
│   └── ImageFileError        a file that is not a readable image
├── ArgumentError             an argument or option that makes no sense (a misuse: exit code 2 on the command line)
│   └── SettingError          such a setting of a request
│       ├── AlphaError        alpha outside its limits
│       ├── SampleSizeError   n cannot certify anything at this alpha, or is beyond a limit
│       └── SigmaError        no sigma, or one that the model was not trained for
├── ModelError                a model file that cannot be used
│   ├── ModelFileError        unreadable, truncated, or no model at all
│   │   └── MissingModelError there is no such file (a misuse: exit code 2)
│   ├── CardError             the card is missing, malformed or does not fit the graph
│   ├── ClassCountError       the graph does not give one score per class of the card
│   ├── BatchError            the scores of an image depend on its neighbours, or it cannot have any
│   └── DigestError           the file is not the one that was expected
├── EngineError               the engine failed, or is not installed
│   ├── DeviceError           the device that was asked for is not there
│   └── MissingExtraError     an optional part of the installation is missing
├── CertificateError          a certificate that cannot be read or replayed
├── SignatureError            a signature that is missing or does not fit, or a key that cannot be used
├── DataError                 a data set that is empty, malformed or of mixed sizes
│   └── MissingDataError      a data set that is not where it was said to be (a misuse: exit code 2)
├── RecipeError               an unknown key, a wrong type or an impossible value in a recipe
├── RunError                  a run folder that is missing, incomplete, damaged or of another recipe
├── TrainingError             a training that cannot continue
│   └── StoppedError          a training that was asked to stop, and kept what it had
├── ExportError               an export that failed, or was not accepted
├── ServeError                a server that did not start, or stopped
└── ClientError               an answer of a server that is not a certificate
"""

__all__ = [
    "AlphaError",
    "ArgumentError",
    "BatchError",
    "CardError",
    "CertificateError",
    "ClassCountError",
    "ClientError",
    "DataError",
    "DeviceError",
    "DigestError",
    "DtypeError",
    "EngineError",
    "ExportError",
    "ImageFileError",
    "InputError",
    "MissingDataError",
    "MissingExtraError",
    "MissingModelError",
    "ModelError",
    "ModelFileError",
    "PixelRangeError",
    "RecipeError",
    "RobustinferError",
    "RunError",
    "SampleSizeError",
    "ServeError",
    "SettingError",
    "ShapeError",
    "SigmaError",
    "SignatureError",
    "StoppedError",
    "TrainingError",
]


class RobustinferError(Exception):
    """Base class. The message is one sentence: what was expected, what was found, what to do."""

    exit_code = 1


class InputError(RobustinferError):
    """An image breaks the input contract."""


class ShapeError(InputError):
    """Wrong number of axes, channels, height or width."""


class DtypeError(InputError):
    """Neither uint8 nor a floating type."""


class PixelRangeError(InputError):
    """A pixel outside [0,1], or one that is NaN or infinite."""


class ImageFileError(InputError):
    """A file that is not a readable image."""


class ArgumentError(RobustinferError):
    """An argument or option that makes no sense."""

    exit_code = 2


class SettingError(ArgumentError):
    """A setting of a request that makes no sense."""


class AlphaError(SettingError):
    """Alpha outside its limits."""


class SampleSizeError(SettingError):
    """The number of samples cannot certify anything at this alpha, or is beyond a limit."""


class SigmaError(SettingError):
    """No sigma, or one that the model was not trained for."""


class ModelError(RobustinferError):
    """A model file cannot be used."""


class ModelFileError(ModelError):
    """Unreadable, truncated, or no model at all."""


class MissingModelError(ModelFileError):
    """There is no such file."""

    exit_code = 2


class CardError(ModelError):
    """The card is missing, malformed or does not fit the graph."""


class ClassCountError(ModelError):
    """The graph does not give one score per class of the card."""


class BatchError(ModelError):
    """The scores of an image depend on the images beside it in a batch, or the graph takes no such batch."""


class DigestError(ModelError):
    """The file is not the one that was expected."""


class EngineError(RobustinferError):
    """The engine failed, or is not installed."""


class DeviceError(EngineError):
    """The device that was asked for is not there."""


class MissingExtraError(EngineError):
    """An optional part of the installation is missing."""

    def __init__(self, extra: str, why: str, module: str | None = None) -> None:
        found = f" (no module named {module!r})" if module else ""
        super().__init__(
            f'{why} needs an optional part that is not installed{found}: pip install "robustinfer[{extra}]"'
        )
        self.extra = extra


class CertificateError(RobustinferError):
    """A certificate cannot be read or replayed."""


class SignatureError(RobustinferError):
    """A signature is missing or does not fit, or a key cannot be used."""


class DataError(RobustinferError):
    """A data set is empty, malformed or of mixed sizes."""


class MissingDataError(DataError):
    """A data set is not where it was said to be, or there is none of this name."""

    exit_code = 2


class RecipeError(RobustinferError):
    """An unknown key, a wrong type or an impossible value in a recipe."""

    exit_code = 2


class RunError(RobustinferError):
    """A run folder is missing, incomplete, damaged or of another recipe."""


class TrainingError(RobustinferError):
    """A training cannot continue."""


class StoppedError(TrainingError):
    """A training was asked to stop. Its run folder holds everything up to that moment."""

    exit_code = 130


class ExportError(RobustinferError):
    """An export failed, or was not accepted."""


class ServeError(RobustinferError):
    """A server did not start, or stopped."""


class ClientError(RobustinferError):
    """An answer of a server is not a certificate. `status` and `code` are the server's, if it gave any."""

    def __init__(self, message: str, *, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
