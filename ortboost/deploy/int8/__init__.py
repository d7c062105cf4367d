"""Int8 with QuantizeLinear/DequantizeLinear pairs and ranges from calibration data."""

from ortboost.deploy.int8.config import CALIBRATIONS, Int8Config
from ortboost.deploy.int8.quantize import quantize_int8

__all__ = ["CALIBRATIONS", "Int8Config", "quantize_int8"]
