"""Configurations as people have them, with the keys that matter; sizes are the published ones."""

from typing import Any

LLAMA2 = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
}
LLAMA3_70B = LLAMA2 | {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
MIXTRAL = LLAMA2 | {
    "model_type": "mixtral",
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
QWEN25 = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}
QWEN3_4B = {
    "model_type": "qwen3",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}
QWEN3_30B = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
}
QWEN15_MOE = {
    "model_type": "qwen2_moe",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "vocab_size": 151936,
    "max_position_embeddings": 8192,
}
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "n_inner": None,
    "vocab_size": 50257,
}
NEOX = {
    "model_type": "gpt_neox",
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "vocab_size": 50432,
    "max_position_embeddings": 2048,
}
FALCON = {
    "model_type": "falcon",
    "hidden_size": 4544,
    "num_hidden_layers": 32,
    "num_attention_heads": 71,
    "num_kv_heads": 71,
    "multi_query": True,
    "vocab_size": 65024,
}
GEMMA = {
    "model_type": "gemma",
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
}
DEEPSEEK_V2_LITE = {
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "vocab_size": 102400,
    "max_position_embeddings": 163840,
}


def _config(
    kind: str, hidden: int, ffn: int | None, layers: int, heads: int, words: int, **more: Any
) -> dict[str, Any]:
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    sizes = dict(zip(names, (hidden, ffn, layers, heads), strict=True))
    usual = {"model_type": kind, "vocab_size": words, "max_position_embeddings": 2048}
    return usual | sizes | more


_MLA = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "v_head_dim": 128}
_KIMI = {
    **(_MLA | {"qk_rope_head_dim": 64, "n_routed_experts": 384, "n_shared_experts": 1}),
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 1,
}
_QWEN235 = {
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1536,
}
_OSS = {
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
}
# One of each other family.
OTHERS: list[tuple[dict[str, Any], float]] = [
    (_config("mistral", 4096, 14336, 32, 32, 32000, num_key_value_heads=8), 7.24),
    (_config("qwen3_moe", 4096, 12288, 94, 64, 151936, **_QWEN235), 235.1),
    (_config("gpt_oss", 2880, 2880, 24, 64, 201088, **_OSS), 20.9),
    (_config("kimi_k2", 7168, 18432, 61, 64, 163840, **_KIMI), 1026.0),
    (_config("gemma2", 3584, 14336, 42, 16, 256000, num_key_value_heads=8, head_dim=256), 9.24),
    (_config("gemma3_text", 1152, 6912, 26, 4, 262144, num_key_value_heads=1, head_dim=256), 1.0),
    (_config("phi3", 3072, 8192, 32, 32, 32064), 3.82),
    (_config("phi", 2560, 10240, 32, 32, 51200), 2.78),
    (_config("olmo", 4096, 11008, 32, 32, 50304), 6.89),
    (_config("olmo2", 5120, 13824, 40, 40, 100352), 13.7),
    (_config("olmoe", 2048, 1024, 16, 16, 50304, num_experts=64, num_experts_per_tok=8), 6.92),
    (_config("cohere", 8192, 22528, 40, 64, 256000), 35.0),
    (
        _config(
            *("granite", 4096, 12800, 40, 32, 49155),
            num_key_value_heads=8,
            tie_word_embeddings=True,
        ),
        8.17,
    ),
    (_config("smollm3", 2048, 11008, 36, 16, 128256, num_key_value_heads=4), 3.08),
    (_config("stablelm", 5120, 13824, 40, 32, 100352, num_key_value_heads=8), 12.14),
    (_config("internlm2", 6144, 16384, 48, 48, 92544, num_key_value_heads=8), 19.86),
    (_config("starcoder2", 4608, 18432, 32, 36, 49152, num_key_value_heads=4), 7.17),
    (_config("gpt_bigcode", 6144, 24576, 40, 48, 49152, multi_query=True), 15.5),
    (_config("gptj", 4096, None, 28, 16, 50400), 6.05),
    (_config("bloom", 14336, None, 70, 112, 250880), 176.2),
    (_config("opt", 4096, 16384, 32, 32, 50272), 6.66),
    (_config("mpt", 4096, None, 32, 32, 50432), 6.65),
]
# Published numbers of parameters, in billions, as far as they are given.
PUBLISHED: list[tuple[dict[str, Any], float]] = [
    (LLAMA2, 6.74),
    (LLAMA3_70B, 70.55),
    (MIXTRAL, 46.7),
    (QWEN25, 7.62),
    (QWEN3_4B, 4.02),
    (QWEN3_30B, 30.5),
    (QWEN15_MOE, 14.3),
    (GPT2, 0.1244),
    (NEOX, 20.55),
    (FALCON, 6.92),
    (GEMMA, 8.54),
    (DEEPSEEK_V3, 671.0),
    (DEEPSEEK_V2_LITE, 15.7),
]
SCRIPT = """#!/bin/bash
# --num-layers 1: a comment
GPUS_PER_NODE=8
NNODES=${NNODES:-16}
TP=8
PP=2
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
    --master_addr $MASTER_ADDR
)
GPT_ARGS="
    --num-layers 80 --hidden-size 8192 \\
    --num-attention-heads 64
    --group-query-attention --num-query-groups 8
    --ffn-hidden-size 28672
    --swiglu
    --untie-embeddings-and-output-weights
    --position-embedding-type rope
    --seq-length 4096
    --max-position-embeddings 4096
    --vocab-size 128256
"
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py $GPT_ARGS \\
    --tensor-model-parallel-size ${TP} \\
    --pipeline-model-parallel-size $PP \\
    --num-layers-per-virtual-pipeline-stage 10 \\
    --sequence-parallel --use-distributed-optimizer \\
    --micro-batch-size 1 --global-batch-size 512 \\
    --recompute-granularity selective \\
    --bf16 --lr 1.5e-4
"""
TITAN = """
[model]
name = "llama3"
flavor = "8B"

[training]
local_batch_size = 2
seq_len = 8192
mixed_precision_reduce = "float32"
steps = 1000

[parallelism]
data_parallel_replicate_degree = 4
data_parallel_shard_degree = 8
tensor_parallel_degree = 2
enable_async_tensor_parallel = true

[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"

[compile]
enable = true
"""
DEEPSPEED: dict[str, Any] = {
    "train_batch_size": 256,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {
        "stage": 3,
        "reduce_bucket_size": 5e8,
        "overlap_comm": True,
        "offload_optimizer": {"device": "none"},
    },
    "bf16": {"enabled": True},
    "gradient_clipping": "auto",
}
