"""Int8 with QuantizeLinear/DequantizeLinear pairs and ranges from calibration data."""
