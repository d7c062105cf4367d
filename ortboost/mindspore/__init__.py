"""MindSpore's names over the layers below; nothing imports it but the aliases ``nn``, ``boost`` and ``amp``."""
