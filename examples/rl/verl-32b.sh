#!/usr/bin/env bash
# GRPO with LoRA for a 32B model by verl on a Ray cluster, rewards from `stitch-mcp rl serve`.
#
# On the judge's node:    stitch-mcp rl serve --help     (GPUs of its own: no training beside a timing)
# Data, on any node:      stitch-mcp rl export train.jsonl --format verl --out train-verl.jsonl
#                         and the same for heldout.jsonl; verl reads Parquet:
#                         python -c 'import pandas as p; p.read_json("train-verl.jsonl", lines=True).to_parquet("train.parquet")'
# On the cluster's head:  ray start --head, `ray start --address` on the others, then this script.
#
# Written after verl 0.9's documented keys; not run by this project.
set -euo pipefail

: "${STITCH_RL_URL:?the reward service, for example http://judge:8322/verify}"
adapter=$(python -c 'import stitch_mcp.rl.reward.adapters as a; print(a.__path__[0])')/verl_reward.py

python -m verl.trainer.main_ppo \
  algorithm.adv_estimator=grpo \
  algorithm.use_kl_in_reward=false \
  data.train_files="${TRAIN:-train.parquet}" \
  data.val_files="${HELDOUT:-heldout.parquet}" \
  data.train_batch_size="${PROMPTS:-16}" \
  data.max_prompt_length=8192 \
  data.max_response_length=8192 \
  actor_rollout_ref.model.path="${MODEL:-Qwen/Qwen3-32B}" \
  actor_rollout_ref.model.lora_rank=64 \
  actor_rollout_ref.model.lora_alpha=128 \
  actor_rollout_ref.model.target_modules=all-linear \
  actor_rollout_ref.model.enable_gradient_checkpointing=true \
  actor_rollout_ref.actor.optim.lr=1e-5 \
  actor_rollout_ref.actor.clip_ratio_low=0.2 \
  actor_rollout_ref.actor.clip_ratio_high=0.28 \
  actor_rollout_ref.actor.use_kl_loss=false \
  actor_rollout_ref.actor.ppo_mini_batch_size="${PROMPTS:-16}" \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \
  actor_rollout_ref.rollout.name=vllm \
  actor_rollout_ref.rollout.n=8 \
  actor_rollout_ref.rollout.tensor_model_parallel_size="${TENSOR_PARALLEL:-4}" \
  actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
  actor_rollout_ref.rollout.load_format=safetensors \
  reward.custom_reward_function.path="$adapter" \
  reward.custom_reward_function.name=compute_score \
  trainer.nnodes="${NODES:-1}" \
  trainer.n_gpus_per_node="${GPUS:-4}" \
  trainer.total_training_steps="${STEPS:-200}" \
  trainer.save_freq=10 \
  trainer.test_freq=20 \
  trainer.logger='["console","tensorboard"]' \
  "$@"
