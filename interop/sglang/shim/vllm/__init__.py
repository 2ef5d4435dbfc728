"""Stands in for vLLM where SGLang imports one of its operators.

SGLang's rotary class imports vllm._custom_ops.rotary_embedding when it finds
neither CUDA nor its own CPU kernels, and then computes in plain torch.
"""
