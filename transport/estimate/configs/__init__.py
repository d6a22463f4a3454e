"""Models and plans of files: of Hugging Face, Megatron-LM, torchtitan and DeepSpeed."""

from transport.estimate.configs.files import is_file, read
from transport.estimate.configs.given import ConfigError, Given

__all__ = ["ConfigError", "Given", "is_file", "read"]
