"""A MultiLang-protocol compatible Amazon Kinesis record processor host. See kcl_host/DESIGN.md."""

__version__ = "0.1.0"
