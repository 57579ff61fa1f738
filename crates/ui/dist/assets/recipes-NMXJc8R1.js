import{l as e}from"./index-a0fJtEl7.js";var t=`# yaml-language-server: $schema=schema.json
# A LoRA for Anima (circlestone-labs), from the single files that ComfyUI loads.
name: anima

model:
  name_or_path: ~/ComfyUI/models/diffusion_models/anima-base-v1.0.safetensors
  vae: ~/ComfyUI/models/vae/qwen_image_vae.safetensors
  text_encoder: ~/ComfyUI/models/text_encoders/qwen_3_06b_base.safetensors
  # A folder with \`tokenizer\` (of Qwen3) and \`t5_tokenizer\`, which the files do not have. Of a folder in diffusers' layout
  # only \`name_or_path\` is needed.
  tokenizer: ~/models/anima-tokenizers
  # The transformer is 4.2 GB in bf16. \`auto\` streams the blocks that do not fit, on a card of 8 GB none or a few.
  offload: auto
  # 6 GB: \`int8\` (2.1 GB).
  # quantization: int8

adapter:
  r: 32
  lora_alpha: 32

data:
  path: ~/pictures
  # 512 is five times as fast, and enough for a first try.
  resolution: 1024
  trigger_word: ohwx
  caption_dropout: 0.05
  validation_fraction: 0.1

train:
  max_steps: 2000
  per_device_train_batch_size: 1
  gradient_checkpointing: true
  learning_rate: 0.0001
  lr_scheduler_type: constant
  warmup_steps: 20
  weighting_scheme: logit_normal
  logging_steps: 10
  eval_steps: 100
  max_eval_samples: 8
  save_steps: 100
  save_total_limit: 4

sample:
  sample_steps: 200
  prompts:
    - ohwx, sitting on a bench in a park
  num_inference_steps: 30
  guidance_scale: 4
`,n=`# yaml-language-server: $schema=schema.json
# A LoRA for Chroma1-HD (lodestones/Chroma1-HD) or Chroma1-Base on 16 GB. The model is a folder as diffusers has it.
name: chroma

model:
  name_or_path: ~/models/Chroma1-HD
  # In place of a folder, the single file that ComfyUI loads; the other parts are found around it.
  # name_or_path: ~/ComfyUI/models/diffusion_models/Chroma1-HD.safetensors
  # The transformer is 17.8 GB in bf16, 9.2 GB in int8. \`auto\` streams the blocks that do not fit.
  quantization: int8
  offload: auto
  # 12 GB: \`nf4\` (5.4 GB). 24 GB and more: leave \`quantization\` out.

adapter:
  r: 16
  lora_alpha: 16

data:
  path: ~/pictures
  # 512 is three to four times as fast, and enough for a first try.
  resolution: 1024
  trigger_word: ohwx
  caption_dropout: 0.05
  validation_fraction: 0.1

train:
  max_steps: 2000
  per_device_train_batch_size: 1
  gradient_checkpointing: true
  learning_rate: 0.0001
  lr_scheduler_type: constant
  warmup_steps: 20
  # As the maker of the model draws noise levels.
  weighting_scheme: inverted_parabola
  logging_steps: 10
  eval_steps: 100
  max_eval_samples: 8
  save_steps: 100
  save_total_limit: 4

sample:
  sample_steps: 250
  prompts:
    - ohwx, sitting on a bench in a park
  negative_prompt: blurry, low quality
  num_inference_steps: 28
  guidance_scale: 4
`,r=`# yaml-language-server: $schema=schema.json
# As small.yaml, but in less than a minute: a run that shows that training works.
name: ci

model:
  hidden_size: 128
  intermediate_size: 352
  num_hidden_layers: 2
  num_attention_heads: 4

data:
  dataset: shakespeare
  block_size: 128

train:
  max_steps: 150
  per_device_train_batch_size: 16
  learning_rate: 3e-3
  warmup_steps: 15
  eval_steps: 50
  max_eval_samples: 64
  save_steps: 75
  save_total_limit: 1

sample:
  max_new_tokens: 80
`,i=`# yaml-language-server: $schema=schema.json
# A LoRA for FLUX.1-dev (black-forest-labs/FLUX.1-dev) or FLUX.1-Krea-dev on 16 GB. The model is a folder as diffusers has it.
name: flux1

model:
  name_or_path: ~/models/FLUX.1-dev
  # In place of a folder, the single files that ComfyUI loads:
  # name_or_path: ~/ComfyUI/models/diffusion_models/flux1-dev.safetensors
  # vae: ~/ComfyUI/models/vae/ae.safetensors
  # text_encoder: ~/ComfyUI/models/text_encoders/clip_l.safetensors
  # text_encoder_2: ~/ComfyUI/models/text_encoders/t5xxl_fp16.safetensors
  # A folder with \`tokenizer\` (CLIP's) and \`tokenizer_2\` (T5's), which the files do not have.
  # tokenizer: ~/models/flux1-tokenizers
  # The transformer is 23.8 GB in bf16, 11.9 GB in int8. \`auto\` streams the blocks that do not fit.
  quantization: int8
  offload: auto
  # 12 GB: \`nf4\` (6.7 GB). 32 GB and more: leave \`quantization\` out.

adapter:
  r: 16
  lora_alpha: 16

data:
  path: ~/pictures
  # 512 is three to four times as fast, and enough for a first try.
  resolution: 1024
  trigger_word: ohwx
  caption_dropout: 0.05
  validation_fraction: 0.1

train:
  max_steps: 2000
  per_device_train_batch_size: 1
  gradient_checkpointing: true
  learning_rate: 0.0001
  lr_scheduler_type: constant
  warmup_steps: 20
  # As sd-scripts recommends for this model: noise levels at 1024 × 1024, and a guidance of 1, never that of pictures.
  weighting_scheme: logit_normal
  flow_shift: 3.1582
  guidance_scale: 1
  logging_steps: 10
  eval_steps: 100
  max_eval_samples: 8
  save_steps: 100
  save_total_limit: 4

sample:
  sample_steps: 250
  prompts:
    - ohwx, sitting on a bench in a park
  num_inference_steps: 28
  guidance_scale: 3.5
`,a=`# yaml-language-server: $schema=schema.json
# A LoRA for FLUX.2 klein: train on the base (black-forest-labs/FLUX.2-klein-base-4B or -9B), use it on the distilled model, too.
name: flux2-klein

model:
  name_or_path: ~/models/FLUX.2-klein-base-4B
  # The transformer of 4B is 7.8 GB in bf16, that of 9B 18.2 GB. \`auto\` streams the blocks that do not fit.
  offload: auto
  # 8 GB: \`int8\` (3.9 GB for 4B). 9B: \`int8\` (9.1 GB) on 16 GB, \`nf4\` (5.1 GB) on 12.
  # quantization: int8

adapter:
  r: 32
  lora_alpha: 32

data:
  path: ~/pictures
  # 512 is three to four times as fast, and enough for a first try.
  resolution: 1024
  trigger_word: ohwx
  caption_dropout: 0.05
  validation_fraction: 0.1

train:
  max_steps: 2000
  per_device_train_batch_size: 1
  gradient_checkpointing: true
  learning_rate: 0.0001
  lr_scheduler_type: constant
  warmup_steps: 20
  # As musubi-tuner draws noise levels at 1024 × 1024; at 512 × 512 its shift is 1.88.
  weighting_scheme: logit_normal
  flow_shift: 3.158
  logging_steps: 10
  eval_steps: 100
  max_eval_samples: 8
  save_steps: 100
  save_total_limit: 4

sample:
  sample_steps: 200
  prompts:
    - ohwx sits on a bench in a park
  num_inference_steps: 50
  guidance_scale: 4
`,o=`# yaml-language-server: $schema=schema.json
# A LoRA on the small Z-Image of garments.yaml, which teaches it the one garment that it has never seen.
name: garments-lora

model:
  name_or_path: runs/garments/model

adapter:
  r: 16
  lora_alpha: 16

data:
  dataset: trousers
  resolution: 16
  caption_dropout: 0.1
  validation_fraction: 0.05

train:
  max_steps: 150
  per_device_train_batch_size: 32
  bf16: false
  learning_rate: 2e-3
  lr_scheduler_type: cosine
  warmup_steps: 10
  weighting_scheme: logit_normal
  flow_shift: 1
  logging_steps: 20
  eval_steps: 50
  max_eval_samples: 24
  save_steps: 50
  save_total_limit: 2

sample:
  sample_steps: 50
  prompts: [trousers, boot, dress]
  num_inference_steps: 20
  guidance_scale: 3
  flow_shift: 1
`,s=`# yaml-language-server: $schema=schema.json
# A small Z-Image from nothing, on pictures of garments (Fashion-MNIST, MIT licence): no download of a model, and minutes on
# two cores. \`cargo xtask train configs/garments.yaml\` creates the pictures, and the parts of the model that are not trained.
name: garments

model:
  name_or_path: garments-base
  from_config: true

data:
  dataset: garments
  resolution: 16
  caption_dropout: 0.1
  validation_fraction: 0.02

train:
  max_steps: 1000
  per_device_train_batch_size: 32
  bf16: false
  learning_rate: 3e-3
  min_lr: 1e-5
  lr_scheduler_type: cosine
  warmup_steps: 50
  adam_beta2: 0.99
  weight_decay: 0.01
  ema_decay: 0.99
  weighting_scheme: logit_normal
  flow_shift: 1
  logging_steps: 20
  eval_steps: 250
  max_eval_samples: 32
  save_steps: 250
  save_total_limit: 2

sample:
  sample_steps: 250
  prompts: [boot, bag, dress, sandal, pullover, trousers]
  num_inference_steps: 20
  guidance_scale: 3
  flow_shift: 1
`,c=`# yaml-language-server: $schema=schema.json
# A LoRA for Krea 2 on 16 GB. The model is a folder as diffusers has it (krea/Krea-2-Raw).
name: krea-2

model:
  # Train on raw; the LoRA works on turbo as well.
  name_or_path: ~/models/Krea-2-Raw
  # In place of a folder, the single files of the maker and of ComfyUI:
  # name_or_path: ~/ComfyUI/models/diffusion_models/raw.safetensors
  # vae: ~/ComfyUI/models/vae/qwen_image_vae.safetensors
  # text_encoder: ~/ComfyUI/models/text_encoders/qwen3vl_4b_fp8_scaled.safetensors
  # tokenizer: ~/models/Krea-2-Raw/tokenizer
  # The transformer is 26 GB in bf16, 13 GB in int8. \`auto\` streams the blocks that do not fit.
  quantization: int8
  offload: auto
  # 12 GB: \`nf4\` (7.2 GB). 64 GB and more: leave \`quantization\` out.

adapter:
  r: 32
  lora_alpha: 32

data:
  path: ~/pictures
  # 512 is three times as fast, and enough for a first try.
  resolution: 1024
  trigger_word: ohwx
  caption_dropout: 0.05
  validation_fraction: 0.1

train:
  max_steps: 2000
  per_device_train_batch_size: 1
  gradient_checkpointing: true
  learning_rate: 0.0001
  lr_scheduler_type: constant
  warmup_steps: 20
  # As musubi-tuner draws noise levels.
  weighting_scheme: logit_normal
  flow_shift: 2.5
  logging_steps: 10
  eval_steps: 100
  max_eval_samples: 8
  save_steps: 100
  save_total_limit: 4

sample:
  sample_steps: 250
  prompts:
    - ohwx, sitting on a bench in a park
  num_inference_steps: 28
  guidance_scale: 5.5
`,l=`# yaml-language-server: $schema=schema.json
# DPO with a LoRA on SmolLM2-135M-Instruct. Set \`data.path\` to pairs of your own: JSON lines with \`prompt\`, \`chosen\` and
# \`rejected\`, as texts or as messages, or a data set of the Hugging Face hub.
name: lora-dpo

model:
  name_or_path: smollm2-135m-instruct

adapter:
  r: 16
  lora_alpha: 32
  target_modules: all-linear

preference:
  loss_type: sigmoid
  beta: 0.1

data:
  path: trl-lib/ultrafeedback_binarized
  block_size: 1024
  validation_fraction: 0.02

train:
  num_train_epochs: 1
  per_device_train_batch_size: 2
  gradient_accumulation_steps: 8
  learning_rate: 0.00002
  warmup_ratio: 0.1
  lr_scheduler_type: linear
  bf16: auto
  gradient_checkpointing: true
  logging_steps: 10
  eval_steps: 200
  max_eval_samples: 64
  save_steps: 200
  save_total_limit: 2

sample:
  max_new_tokens: 60
`,u=`# yaml-language-server: $schema=schema.json
# A LoRA for Qwen-Image-Edit-2509 or 2511 on 24 GB, which changes pictures: those in \`control_path\` become those in \`path\`. The
# model is a folder as diffusers has it.
name: qwen-image-edit

model:
  name_or_path: ~/models/Qwen-Image-Edit-2511
  # In place of a folder, the single files that ComfyUI loads; the number has to be in the name of the first:
  # name_or_path: ~/ComfyUI/models/diffusion_models/qwen_image_edit_2511_bf16.safetensors
  # vae: ~/ComfyUI/models/vae/qwen_image_vae.safetensors
  # text_encoder: ~/ComfyUI/models/text_encoders/qwen_2.5_vl_7b_fp8_scaled.safetensors
  # tokenizer: ~/models/Qwen-Image-Edit-2511/tokenizer
  # The transformer is 41 GB in bf16, 20 GB in int8. \`auto\` streams the blocks that do not fit.
  quantization: int8
  offload: auto

adapter:
  r: 16
  lora_alpha: 16

data:
  path: ~/pictures/after
  control_path: ~/pictures/before
  # A control picture is as many tokens again; 1024 is four times as slow.
  resolution: 512
  control_resolution: 512
  validation_fraction: 0.1

train:
  max_steps: 2000
  per_device_train_batch_size: 1
  gradient_checkpointing: true
  learning_rate: 0.00005
  lr_scheduler_type: constant
  warmup_steps: 20
  # As musubi-tuner draws noise levels.
  weighting_scheme: logit_normal
  flow_shift: 2.2
  logging_steps: 10
  eval_steps: 100
  max_eval_samples: 8
  save_steps: 100
  save_total_limit: 4

sample:
  sample_steps: 250
  prompts:
    - put a hat on the cat
  control_image: ~/pictures/before/1.png
  negative_prompt: " "
  num_inference_steps: 30
  guidance_scale: 4
`,d=`# yaml-language-server: $schema=schema.json
# A LoRA for Qwen-Image or Qwen-Image-2512 (Qwen/Qwen-Image-2512) on 24 GB. The model is a folder as diffusers has it.
name: qwen-image

model:
  name_or_path: ~/models/Qwen-Image-2512
  # In place of a folder, the single files that ComfyUI loads:
  # name_or_path: ~/ComfyUI/models/diffusion_models/qwen_image_2512_fp8_e4m3fn.safetensors
  # vae: ~/ComfyUI/models/vae/qwen_image_vae.safetensors
  # text_encoder: ~/ComfyUI/models/text_encoders/qwen_2.5_vl_7b_fp8_scaled.safetensors
  # tokenizer: ~/models/Qwen-Image-2512/tokenizer
  # The transformer is 41 GB in bf16, 20 GB in int8. \`auto\` streams the blocks that do not fit.
  quantization: int8
  offload: auto
  # 16 GB: \`nf4\` (11.5 GB). 64 GB and more: leave \`quantization\` out.

adapter:
  r: 16
  lora_alpha: 16

data:
  path: ~/pictures
  # 512 is four times as fast, and enough for a first try.
  resolution: 1024
  trigger_word: ohwx
  caption_dropout: 0.05
  validation_fraction: 0.1

train:
  max_steps: 2000
  per_device_train_batch_size: 1
  gradient_checkpointing: true
  learning_rate: 0.00005
  lr_scheduler_type: constant
  warmup_steps: 20
  # As musubi-tuner draws noise levels.
  weighting_scheme: logit_normal
  flow_shift: 2.2
  logging_steps: 10
  eval_steps: 100
  max_eval_samples: 8
  save_steps: 100
  save_total_limit: 4

sample:
  sample_steps: 250
  prompts:
    - ohwx, sitting on a bench in a park
  negative_prompt: " "
  num_inference_steps: 30
  guidance_scale: 4
`,f=`# yaml-language-server: $schema=schema.json
# A LoRA for SDXL (stabilityai/stable-diffusion-xl-base-1.0) or a model built on it: Illustrious, NoobAI, Pony.
name: sdxl

model:
  name_or_path: ~/models/stable-diffusion-xl-base-1.0
  # Or a checkpoint with all parts in one file, and CLIP's tokenizer, which no checkpoint has:
  # name_or_path: ~/ComfyUI/models/checkpoints/illustriousXL.safetensors
  # tokenizer: ~/ComfyUI/comfy/sd1_tokenizer
  # The UNet is 5.1 GB in bf16. \`auto\` streams the blocks that do not fit.
  offload: auto
  # 8 GB: \`int8\` (2.6 GB) or \`nf4\` (1.4 GB).
  # quantization: int8

adapter:
  r: 16
  lora_alpha: 16

data:
  path: ~/pictures
  resolution: 1024
  trigger_word: ohwx
  caption_dropout: 0.05
  validation_fraction: 0.1

train:
  max_steps: 2000
  per_device_train_batch_size: 1
  gradient_checkpointing: true
  learning_rate: 0.0001
  lr_scheduler_type: constant
  warmup_steps: 20
  weighting_scheme: uniform
  logging_steps: 10
  eval_steps: 100
  max_eval_samples: 8
  save_steps: 100
  save_total_limit: 4

sample:
  sample_steps: 200
  prompts:
    - ohwx sits on a bench in a park
  num_inference_steps: 28
  guidance_scale: 6
`,p=`# yaml-language-server: $schema=schema.json
# A small language model on Shakespeare, from nothing, in minutes on two cores with bf16 instructions.
# \`surefoot train\` takes this config when none is named.
name: small

model:
  hidden_size: 256
  intermediate_size: 704
  num_hidden_layers: 4
  num_attention_heads: 4

data:
  dataset: shakespeare
  # Three bytes or so to a token: for the same text a third of the work of single bytes.
  tokenizer: bpe
  vocab_size: 1024
  block_size: 128

train:
  max_steps: 800
  per_device_train_batch_size: 32
  learning_rate: 2e-3
  min_lr: 1e-4
  lr_scheduler_type: cosine
  warmup_steps: 60
  adam_beta2: 0.99
  weight_decay: 0.1
  logging_steps: 10
  eval_steps: 100
  max_eval_samples: 128
  save_steps: 200
  save_total_limit: 2

sample:
  sample_steps: 200
  prompts: ["HAMLET.\\n", "To be, or not to be"]
  max_new_tokens: 100
`,m=`# yaml-language-server: $schema=schema.json
# A LoRA that makes SmolLM2-135M-Instruct speak like Shakespeare: some minutes on two cores. Larger models learn in the same
# way (Qwen/Qwen3-0.6B, Qwen/Qwen3-4B, google/gemma-3-1b-it).
name: smollm2-lora

model:
  name_or_path: smollm2-135m-instruct

adapter:
  r: 16
  lora_alpha: 32
  target_modules: all-linear

data:
  dataset: shakespeare
  block_size: 256
  validation_fraction: 0.02

train:
  max_steps: 150
  per_device_train_batch_size: 4
  learning_rate: 0.0005
  warmup_steps: 10
  bf16: auto
  logging_steps: 10
  eval_steps: 50
  max_eval_samples: 16
  save_steps: 75
  save_total_limit: 2

sample:
  prompts:
    - "ROMEO.\\n"
    - "Shall I compare thee"
  max_new_tokens: 60
  temperature: 0.7
  top_p: 0.9
`,h=`# yaml-language-server: $schema=schema.json
# A LoRA for Wan 2.1 T2V 1.3B (Wan-AI/Wan2.1-T2V-1.3B-Diffusers): the smallest of them, to try a data set with.
name: wan21-1.3b

model:
  name_or_path: ~/models/Wan2.1-T2V-1.3B-Diffusers

adapter:
  r: 16
  lora_alpha: 16

data:
  path: ~/clips
  resolution: [480, 320]
  num_frames: [1, 17, 33]
  frame_extraction: head
  trigger_word: ohwx
  caption_dropout: 0.1
  validation_fraction: 0.1

train:
  max_steps: 2000
  per_device_train_batch_size: 1
  gradient_checkpointing: true
  learning_rate: 0.0001
  lr_scheduler_type: constant
  warmup_steps: 20
  weighting_scheme: shift
  flow_shift: 5
  logging_steps: 10
  eval_steps: 100
  max_eval_samples: 8
  save_steps: 100
  save_total_limit: 4

sample:
  sample_steps: 200
  prompts:
    - ohwx walks on grass
    - ohwx looks out of a window --f 1
  num_frames: 33
  num_inference_steps: 20
  guidance_scale: 5
`,g=`# yaml-language-server: $schema=schema.json
# A LoRA for each expert of Wan 2.2 I2V A14B (Wan-AI/Wan2.2-I2V-A14B-Diffusers), which goes on from a first frame: of
# each clip its own. The boundary between the experts is the model's (0.9, where text to video has 0.875).
name: wan22-i2v-a14b

model:
  name_or_path: ~/models/Wan2.2-I2V-A14B-Diffusers

adapter:
  r: 16
  lora_alpha: 16

data:
  path: ~/clips
  resolution: [480, 320]
  num_frames: 33
  frame_extraction: head
  caption_dropout: 0.1
  validation_fraction: 0.1

train:
  experts: both
  steps_per_expert: 10
  max_steps: 4000
  per_device_train_batch_size: 1
  gradient_checkpointing: true
  learning_rate: 0.0001
  lr_scheduler_type: constant
  warmup_steps: 20
  weighting_scheme: shift
  flow_shift: 5
  logging_steps: 20
  eval_steps: 200
  max_eval_samples: 8
  save_steps: 200
  save_total_limit: 4

sample:
  sample_steps: 400
  image: ~/clips/first-frame.png
  prompts:
    - the camera circles slowly
  num_inference_steps: 20
  guidance_scale: 3.5
`,_=`# yaml-language-server: $schema=schema.json
# A LoRA for each expert of Wan 2.2 T2V A14B (Wan-AI/Wan2.2-T2V-A14B-Diffusers), for one memory of 128 GB as of
# Strix Halo: bf16, both experts stay. On a card of 24 GB set \`model.quantization: nf4\`, and look at
# \`surefoot train CONFIG --dry-run\` before you start.
name: wan22-t2v-a14b

model:
  name_or_path: ~/models/Wan2.2-T2V-A14B-Diffusers

adapter:
  r: 16
  lora_alpha: 16

data:
  path: ~/clips
  resolution: [480, 320]
  num_frames: [1, 33]
  frame_extraction: head
  trigger_word: ohwx
  caption_dropout: 0.1
  validation_fraction: 0.1

train:
  experts: both
  steps_per_expert: 10
  max_steps: 4000
  per_device_train_batch_size: 1
  gradient_checkpointing: true
  learning_rate: 0.0001
  lr_scheduler_type: constant
  warmup_steps: 20
  weighting_scheme: shift
  flow_shift: 5
  logging_steps: 20
  eval_steps: 200
  max_eval_samples: 8
  save_steps: 200
  save_total_limit: 4

sample:
  sample_steps: 400
  prompts:
    - ohwx walks on grass
    - ohwx looks out of a window --f 1
  num_frames: 33
  num_inference_steps: 20
  guidance_scale: 4
  guidance_scale_2: 3
`,v=`# yaml-language-server: $schema=schema.json
# A LoRA for Wan 2.2 TI2V 5B (Wan-AI/Wan2.2-TI2V-5B-Diffusers), at its 24 frames a second. With
# \`data.image_to_video: true\` the first frame is given and the others are learned.
name: wan22-ti2v-5b

model:
  name_or_path: ~/models/Wan2.2-TI2V-5B-Diffusers

adapter:
  r: 16
  lora_alpha: 16

data:
  path: ~/clips
  resolution: [832, 480]
  num_frames: [1, 49]
  frame_extraction: head
  trigger_word: ohwx
  caption_dropout: 0.1
  validation_fraction: 0.1

train:
  max_steps: 2000
  per_device_train_batch_size: 1
  gradient_checkpointing: true
  learning_rate: 0.0001
  lr_scheduler_type: constant
  warmup_steps: 20
  weighting_scheme: shift
  flow_shift: 5
  logging_steps: 10
  eval_steps: 100
  max_eval_samples: 8
  save_steps: 100
  save_total_limit: 4

sample:
  sample_steps: 200
  prompts:
    - ohwx walks on grass
  num_frames: 49
  num_inference_steps: 20
  guidance_scale: 5
`,y=`# yaml-language-server: $schema=schema.json
# A LoRA for Z-Image (Tongyi-MAI/Z-Image), which Z-Image-Turbo draws with, too: train on the base, use it on either.
name: z-image

model:
  name_or_path: ~/models/Z-Image
  # The transformer is 12.3 GB in bf16. \`auto\` streams the blocks that do not fit, on a card of 16 GB a few.
  offload: auto
  # 12 GB: \`int8\` (6.2 GB). 8 GB: \`nf4\` (3.5 GB), or \`int8\` with \`offload: all\`, which streams all blocks.
  # quantization: int8

adapter:
  r: 32
  lora_alpha: 32

data:
  path: ~/pictures
  # 512 is four times as fast, and enough for a first try.
  resolution: 1024
  trigger_word: ohwx
  caption_dropout: 0.05
  validation_fraction: 0.1

train:
  max_steps: 2000
  per_device_train_batch_size: 1
  gradient_checkpointing: true
  learning_rate: 0.0001
  lr_scheduler_type: constant
  warmup_steps: 20
  weighting_scheme: shift
  flow_shift: 2
  logging_steps: 10
  eval_steps: 100
  max_eval_samples: 8
  save_steps: 100
  save_total_limit: 4

sample:
  sample_steps: 200
  prompts:
    - ohwx sits on a bench in a park
  num_inference_steps: 28
  # For Z-Image-Turbo: 8 steps and a guidance of 1.
  guidance_scale: 4
`,b=Symbol.for(`yaml.alias`),x=Symbol.for(`yaml.document`),S=Symbol.for(`yaml.map`),ee=Symbol.for(`yaml.pair`),C=Symbol.for(`yaml.scalar`),te=Symbol.for(`yaml.seq`),w=Symbol.for(`yaml.node.type`),T=e=>!!e&&typeof e==`object`&&e[w]===b,ne=e=>!!e&&typeof e==`object`&&e[w]===x,E=e=>!!e&&typeof e==`object`&&e[w]===S,D=e=>!!e&&typeof e==`object`&&e[w]===ee,O=e=>!!e&&typeof e==`object`&&e[w]===C,k=e=>!!e&&typeof e==`object`&&e[w]===te;function A(e){if(e&&typeof e==`object`)switch(e[w]){case S:case te:return!0}return!1}function j(e){if(e&&typeof e==`object`)switch(e[w]){case b:case S:case C:case te:return!0}return!1}var re=e=>(O(e)||A(e))&&!!e.anchor,M=Symbol(`break visit`),ie=Symbol(`skip children`),ae=Symbol(`remove node`);function oe(e,t){let n=se(t);ne(e)?N(null,e.contents,n,Object.freeze([e]))===ae&&(e.contents=null):N(null,e,n,Object.freeze([]))}oe.BREAK=M,oe.SKIP=ie,oe.REMOVE=ae;function N(e,t,n,r){let i=ce(e,t,n,r);if(j(i)||D(i))return le(e,r,i),N(e,i,n,r);if(typeof i!=`symbol`){if(A(t)){r=Object.freeze(r.concat(t));for(let e=0;e<t.items.length;++e){let i=N(e,t.items[e],n,r);if(typeof i==`number`)e=i-1;else if(i===M)return M;else i===ae&&(t.items.splice(e,1),--e)}}else if(D(t)){r=Object.freeze(r.concat(t));let e=N(`key`,t.key,n,r);if(e===M)return M;e===ae&&(t.key=null);let i=N(`value`,t.value,n,r);if(i===M)return M;i===ae&&(t.value=null)}}return i}function se(e){return typeof e==`object`&&(e.Collection||e.Node||e.Value)?Object.assign({Alias:e.Node,Map:e.Node,Scalar:e.Node,Seq:e.Node},e.Value&&{Map:e.Value,Scalar:e.Value,Seq:e.Value},e.Collection&&{Map:e.Collection,Seq:e.Collection},e):e}function ce(e,t,n,r){if(typeof n==`function`)return n(e,t,r);if(E(t))return n.Map?.(e,t,r);if(k(t))return n.Seq?.(e,t,r);if(D(t))return n.Pair?.(e,t,r);if(O(t))return n.Scalar?.(e,t,r);if(T(t))return n.Alias?.(e,t,r)}function le(e,t,n){let r=t[t.length-1];if(A(r))r.items[e]=n;else if(D(r))e===`key`?r.key=n:r.value=n;else if(ne(r))r.contents=n;else{let e=T(r)?`alias`:`scalar`;throw Error(`Cannot replace node with ${e} parent`)}}var ue={"!":`%21`,",":`%2C`,"[":`%5B`,"]":`%5D`,"{":`%7B`,"}":`%7D`},de=e=>e.replace(/[!,[\]{}]/g,e=>ue[e]),P=class e{constructor(t,n){this.docStart=null,this.docEnd=!1,this.yaml=Object.assign({},e.defaultYaml,t),this.tags=Object.assign({},e.defaultTags,n)}clone(){let t=new e(this.yaml,this.tags);return t.docStart=this.docStart,t}atDocument(){let t=new e(this.yaml,this.tags);switch(this.yaml.version){case`1.1`:this.atNextDocument=!0;break;case`1.2`:this.atNextDocument=!1,this.yaml={explicit:e.defaultYaml.explicit,version:`1.2`},this.tags=Object.assign({},e.defaultTags)}return t}add(t,n){this.atNextDocument&&=(this.yaml={explicit:e.defaultYaml.explicit,version:`1.1`},this.tags=Object.assign({},e.defaultTags),!1);let r=t.trim().split(/[ \t]+/),i=r.shift();switch(i){case`%TAG`:{if(r.length!==2&&(n(0,`%TAG directive should contain exactly two parts`),r.length<2))return!1;let[e,t]=r;return this.tags[e]=t,!0}case`%YAML`:{if(this.yaml.explicit=!0,r.length!==1)return n(0,`%YAML directive should contain exactly one part`),!1;let[e]=r;if(e===`1.1`||e===`1.2`)return this.yaml.version=e,!0;{let t=/^\d+\.\d+$/.test(e);return n(6,`Unsupported YAML version ${e}`,t),!1}}default:return n(0,`Unknown directive ${i}`,!0),!1}}tagName(e,t){if(e===`!`)return`!`;if(e[0]!==`!`)return t(`Not a valid tag: ${e}`),null;if(e[1]===`<`){let n=e.slice(2,-1);return n===`!`||n===`!!`?(t(`Verbatim tags aren't resolved, so ${e} is invalid.`),null):(e[e.length-1]!==`>`&&t(`Verbatim tags must end with a >`),n)}let[,n,r]=e.match(/^(.*!)([^!]*)$/s);r||t(`The ${e} tag has no suffix`);let i=this.tags[n];if(i)try{return i+decodeURIComponent(r)}catch(e){return t(String(e)),null}return n===`!`?e:(t(`Could not resolve tag: ${e}`),null)}tagString(e){for(let[t,n]of Object.entries(this.tags))if(e.startsWith(n))return t+de(e.substring(n.length));return e[0]===`!`?e:`!<${e}>`}toString(e){let t=this.yaml.explicit?[`%YAML ${this.yaml.version||`1.2`}`]:[],n=Object.entries(this.tags),r;if(e&&n.length>0&&j(e.contents)){let t={};oe(e.contents,(e,n)=>{j(n)&&n.tag&&(t[n.tag]=!0)}),r=Object.keys(t)}else r=[];for(let[i,a]of n)i===`!!`&&a===`tag:yaml.org,2002:`||e&&!r.some(e=>e.startsWith(a))||t.push(`%TAG ${i} ${a}`);return t.join(`
`)}};P.defaultYaml={explicit:!1,version:`1.2`},P.defaultTags={"!!":`tag:yaml.org,2002:`};function fe(e){if(/[\x00-\x19\s,[\]{}]/.test(e)){let t=`Anchor must not contain whitespace or control characters: ${JSON.stringify(e)}`;throw Error(t)}return!0}function pe(e){let t=new Set;return oe(e,{Value(e,n){n.anchor&&t.add(n.anchor)}}),t}function me(e,t){for(let n=1;;++n){let r=`${e}${n}`;if(!t.has(r))return r}}function he(e,t){let n=[],r=new Map,i=null;return{onAnchor:r=>{n.push(r),i??=pe(e);let a=me(t,i);return i.add(a),a},setAnchors:()=>{for(let e of n){let t=r.get(e);if(typeof t==`object`&&t.anchor&&(O(t.node)||A(t.node)))t.node.anchor=t.anchor;else{let t=Error(`Failed to resolve repeated object (this should not happen)`);throw t.source=e,t}}},sourceObjects:r}}function F(e,t,n,r){if(r&&typeof r==`object`){if(Array.isArray(r))for(let t=0,n=r.length;t<n;++t){let n=r[t],i=F(e,r,String(t),n);i===void 0?delete r[t]:i!==n&&(r[t]=i)}else if(r instanceof Map)for(let t of Array.from(r.keys())){let n=r.get(t),i=F(e,r,t,n);i===void 0?r.delete(t):i!==n&&r.set(t,i)}else if(r instanceof Set)for(let t of Array.from(r)){let n=F(e,r,t,t);n===void 0?r.delete(t):n!==t&&(r.delete(t),r.add(n))}else for(let[t,n]of Object.entries(r)){let i=F(e,r,t,n);i===void 0?delete r[t]:i!==n&&(r[t]=i)}}return e.call(t,n,r)}function I(e,t,n){if(Array.isArray(e))return e.map((e,t)=>I(e,String(t),n));if(e&&typeof e.toJSON==`function`){if(!n||!re(e))return e.toJSON(t,n);let r={aliasCount:0,count:1,res:void 0};n.anchors.set(e,r),n.onCreate=e=>{r.res=e,delete n.onCreate};let i=e.toJSON(t,n);return n.onCreate&&n.onCreate(i),i}return typeof e==`bigint`&&!n?.keep?Number(e):e}var ge=class{constructor(e){Object.defineProperty(this,w,{value:e})}clone(){let e=Object.create(Object.getPrototypeOf(this),Object.getOwnPropertyDescriptors(this));return this.range&&(e.range=this.range.slice()),e}toJS(e,{mapAsMap:t,maxAliasCount:n,onAnchor:r,reviver:i}={}){if(!ne(e))throw TypeError(`A document argument is required`);let a={anchors:new Map,doc:e,keep:!0,mapAsMap:t===!0,mapKeyWarned:!1,maxAliasCount:typeof n==`number`?n:100},o=I(this,``,a);if(typeof r==`function`)for(let{count:e,res:t}of a.anchors.values())r(t,e);return typeof i==`function`?F(i,{"":o},``,o):o}},_e=class extends ge{constructor(e){super(b),this.source=e,Object.defineProperty(this,"tag",{set(){throw Error(`Alias nodes cannot have tags`)}})}resolve(e,t){if(t?.maxAliasCount===0)throw ReferenceError(`Alias resolution is disabled`);let n;t?.aliasResolveCache?n=t.aliasResolveCache:(n=[],oe(e,{Node:(e,t)=>{(T(t)||re(t))&&n.push(t)}}),t&&(t.aliasResolveCache=n));let r;for(let e of n){if(e===this)break;e.anchor===this.source&&(r=e)}if(r&&t){let{anchors:e,doc:n,maxAliasCount:i}=t,a=e.get(r);if(a||=(I(r,null,t),e.get(r)),a?.res===void 0)throw ReferenceError(`This should not happen: Alias anchor was not resolved?`);if(i>=0&&(a.count+=1,a.aliasCount===0&&(a.aliasCount=ve(n,r,e)),a.count*a.aliasCount>i))throw ReferenceError(`Excessive alias count indicates a resource exhaustion attack`)}return r}toJSON(e,t){if(!t)return{source:this.source};let n=this.resolve(t.doc,t);if(!n){let e=`Unresolved alias (the anchor must be set before the alias): ${this.source}`;throw ReferenceError(e)}return t.anchors.get(n).res}toString(e,t,n){let r=`*${this.source}`;if(e){if(fe(this.source),e.options.verifyAliasOrder&&!e.anchors.has(this.source)){let e=`Unresolved alias (the anchor must be set before the alias): ${this.source}`;throw Error(e)}if(e.implicitKey)return`${r} `}return r}};function ve(e,t,n){if(T(t)){let r=t.resolve(e),i=n&&r&&n.get(r);return i?i.count*i.aliasCount:0}if(A(t)){let r=0;for(let i of t.items){let t=ve(e,i,n);t>r&&(r=t)}return r}if(D(t)){let r=ve(e,t.key,n),i=ve(e,t.value,n);return Math.max(r,i)}return 1}var ye=e=>!e||typeof e!=`function`&&typeof e!=`object`,L=class extends ge{constructor(e){super(C),this.value=e}toJSON(e,t){return t?.keep?this.value:I(this.value,e,t)}toString(){return String(this.value)}};L.BLOCK_FOLDED=`BLOCK_FOLDED`,L.BLOCK_LITERAL=`BLOCK_LITERAL`,L.PLAIN=`PLAIN`,L.QUOTE_DOUBLE=`QUOTE_DOUBLE`,L.QUOTE_SINGLE=`QUOTE_SINGLE`;var be=`tag:yaml.org,2002:`;function xe(e,t,n){if(t){let e=n.filter(e=>e.tag===t),r=e.find(e=>!e.format)??e[0];if(!r)throw Error(`Tag ${t} not found`);return r}return n.find(t=>t.identify?.(e)&&!t.format)}function Se(e,t,n){if(ne(e)&&(e=e.contents),j(e))return e;if(D(e)){let t=n.schema[S].createNode?.(n.schema,null,n);return t.items.push(e),t}(e instanceof String||e instanceof Number||e instanceof Boolean||typeof BigInt<`u`&&e instanceof BigInt)&&(e=e.valueOf());let{aliasDuplicateObjects:r,onAnchor:i,onTagObj:a,schema:o,sourceObjects:s}=n,c;if(r&&e&&typeof e==`object`){if(c=s.get(e),c)return c.anchor??(c.anchor=i(e)),new _e(c.anchor);c={anchor:null,node:null},s.set(e,c)}t?.startsWith(`!!`)&&(t=be+t.slice(2));let l=xe(e,t,o.tags);if(!l){if(e&&typeof e.toJSON==`function`&&(e=e.toJSON()),!e||typeof e!=`object`){let t=new L(e);return c&&(c.node=t),t}l=e instanceof Map?o[S]:Symbol.iterator in Object(e)?o[te]:o[S]}a&&(a(l),delete n.onTagObj);let u=l?.createNode?l.createNode(n.schema,e,n):typeof l?.nodeClass?.from==`function`?l.nodeClass.from(n.schema,e,n):new L(e);return t?u.tag=t:l.default||(u.tag=l.tag),c&&(c.node=u),u}function Ce(e,t,n){let r=n;for(let e=t.length-1;e>=0;--e){let n=t[e];if(typeof n==`number`&&Number.isInteger(n)&&n>=0){let e=[];e[n]=r,r=e}else r=new Map([[n,r]])}return Se(r,void 0,{aliasDuplicateObjects:!1,keepUndefined:!1,onAnchor:()=>{throw Error(`This should not happen, please report a bug.`)},schema:e,sourceObjects:new Map})}var we=e=>e==null||typeof e==`object`&&!!e[Symbol.iterator]().next().done,Te=class extends ge{constructor(e,t){super(e),Object.defineProperty(this,"schema",{value:t,configurable:!0,enumerable:!1,writable:!0})}clone(e){let t=Object.create(Object.getPrototypeOf(this),Object.getOwnPropertyDescriptors(this));return e&&(t.schema=e),t.items=t.items.map(t=>j(t)||D(t)?t.clone(e):t),this.range&&(t.range=this.range.slice()),t}addIn(e,t){if(we(e))this.add(t);else{let[n,...r]=e,i=this.get(n,!0);if(A(i))i.addIn(r,t);else if(i===void 0&&this.schema)this.set(n,Ce(this.schema,r,t));else throw Error(`Expected YAML collection at ${n}. Remaining path: ${r}`)}}deleteIn(e){let[t,...n]=e;if(n.length===0)return this.delete(t);let r=this.get(t,!0);if(A(r))return r.deleteIn(n);throw Error(`Expected YAML collection at ${t}. Remaining path: ${n}`)}getIn(e,t){let[n,...r]=e,i=this.get(n,!0);return r.length===0?!t&&O(i)?i.value:i:A(i)?i.getIn(r,t):void 0}hasAllNullValues(e){return this.items.every(t=>{if(!D(t))return!1;let n=t.value;return n==null||e&&O(n)&&n.value==null&&!n.commentBefore&&!n.comment&&!n.tag})}hasIn(e){let[t,...n]=e;if(n.length===0)return this.has(t);let r=this.get(t,!0);return A(r)?r.hasIn(n):!1}setIn(e,t){let[n,...r]=e;if(r.length===0)this.set(n,t);else{let e=this.get(n,!0);if(A(e))e.setIn(r,t);else if(e===void 0&&this.schema)this.set(n,Ce(this.schema,r,t));else throw Error(`Expected YAML collection at ${n}. Remaining path: ${r}`)}}},Ee=e=>e.replace(/^(?!$)(?: $)?/gm,`#`);function R(e,t){return/^\n+$/.test(e)?e.substring(1):t?e.replace(/^(?! *$)/gm,t):e}var z=(e,t,n)=>e.endsWith(`
`)?R(n,t):n.includes(`
`)?`
`+R(n,t):(e.endsWith(` `)?``:` `)+n,De=`flow`,Oe=`block`,ke=`quoted`;function Ae(e,t,n=`flow`,{indentAtStart:r,lineWidth:i=80,minContentWidth:a=20,onFold:o,onOverflow:s}={}){if(!i||i<0)return e;i<a&&(a=0);let c=Math.max(1+a,1+i-t.length);if(e.length<=c)return e;let l=[],u={},d=i-t.length;typeof r==`number`&&(r>i-Math.max(2,a)?l.push(0):d=i-r);let f,p,m=!1,h=-1,g=-1,_=-1;n===`block`&&(h=je(e,h,t.length),h!==-1&&(d=h+c));for(let r;r=e[h+=1];){if(n===`quoted`&&r===`\\`){switch(g=h,e[h+1]){case`x`:h+=3;break;case`u`:h+=5;break;case`U`:h+=9;break;default:h+=1}_=h}if(r===`
`)n===`block`&&(h=je(e,h,t.length)),d=h+t.length+c,f=void 0;else{if(r===` `&&p&&p!==` `&&p!==`
`&&p!==`	`){let t=e[h+1];t&&t!==` `&&t!==`
`&&t!==`	`&&(f=h)}if(h>=d){if(f)l.push(f),d=f+c,f=void 0;else if(n===`quoted`){for(;p===` `||p===`	`;)p=r,r=e[h+=1],m=!0;let t=h>_+1?h-2:g-1;if(u[t])return e;l.push(t),u[t]=!0,d=t+c,f=void 0}else m=!0}}p=r}if(m&&s&&s(),l.length===0)return e;o&&o();let v=e.slice(0,l[0]);for(let r=0;r<l.length;++r){let i=l[r],a=l[r+1]||e.length;i===0?v=`\n${t}${e.slice(0,a)}`:(n===`quoted`&&u[i]&&(v+=`${e[i]}\\`),v+=`\n${t}${e.slice(i+1,a)}`)}return v}function je(e,t,n){let r=t,i=t+1,a=e[i];for(;a===` `||a===`	`;)if(t<i+n)a=e[++t];else{do a=e[++t];while(a&&a!==`
`);r=t,i=t+1,a=e[i]}return r}var Me=(e,t)=>({indentAtStart:t?e.indent.length:e.indentAtStart,lineWidth:e.options.lineWidth,minContentWidth:e.options.minContentWidth}),Ne=e=>/^(%|---|\.\.\.)/m.test(e);function Pe(e,t,n){if(!t||t<0)return!1;let r=t-n,i=e.length;if(i<=r)return!1;for(let t=0,n=0;t<i;++t)if(e[t]===`
`){if(t-n>r)return!0;if(n=t+1,i-n<=r)return!1}return!0}function Fe(e,t){let n=JSON.stringify(e);if(t.options.doubleQuotedAsJSON)return n;let{implicitKey:r}=t,i=t.options.doubleQuotedMinMultiLineLength,a=t.indent||(Ne(e)?`  `:``),o=``,s=0;for(let e=0,t=n[e];t;t=n[++e])if(t===` `&&n[e+1]===`\\`&&n[e+2]===`n`&&(o+=n.slice(s,e)+`\\ `,e+=1,s=e,t=`\\`),t===`\\`)switch(n[e+1]){case`u`:{o+=n.slice(s,e);let t=n.substr(e+2,4);switch(t){case`0000`:o+=`\\0`;break;case`0007`:o+=`\\a`;break;case`000b`:o+=`\\v`;break;case`001b`:o+=`\\e`;break;case`0085`:o+=`\\N`;break;case`00a0`:o+=`\\_`;break;case`2028`:o+=`\\L`;break;case`2029`:o+=`\\P`;break;default:t.substr(0,2)===`00`?o+=`\\x`+t.substr(2):o+=n.substr(e,6)}e+=5,s=e+1}break;case`n`:if(r||n[e+2]===`"`||n.length<i)e+=1;else{for(o+=n.slice(s,e)+`

`;n[e+2]===`\\`&&n[e+3]===`n`&&n[e+4]!==`"`;)o+=`
`,e+=2;o+=a,n[e+2]===` `&&(o+=`\\`),e+=1,s=e+1}break;default:e+=1}return o=s?o+n.slice(s):n,r?o:Ae(o,a,ke,Me(t,!1))}function Ie(e,t){if(t.options.singleQuote===!1||t.implicitKey&&e.includes(`
`)||/[ \t]\n|\n[ \t]/.test(e))return Fe(e,t);let n=t.indent||(Ne(e)?`  `:``),r=`'`+e.replace(/'/g,`''`).replace(/\n+/g,`$&\n${n}`)+`'`;return t.implicitKey?r:Ae(r,n,De,Me(t,!1))}function Le(e,t){let{singleQuote:n}=t.options,r;if(n===!1)r=Fe;else{let t=e.includes(`"`),i=e.includes(`'`);r=t&&!i?Ie:i&&!t?Fe:n?Ie:Fe}return r(e,t)}var Re;try{Re=RegExp(`(^|(?<!
))
+(?!
|$)`,`g`)}catch{Re=/\n+(?!\n|$)/g}function ze({comment:e,type:t,value:n},r,i,a){let{blockQuote:o,commentString:s,lineWidth:c}=r.options;if(!o||/\n[\t ]+$/.test(n))return Le(n,r);let l=r.indent||(r.forceBlockIndent||Ne(n)?`  `:``),u=o===`literal`?!0:o===`folded`||t===L.BLOCK_FOLDED?!1:t===L.BLOCK_LITERAL||!Pe(n,c,l.length);if(!n)return u?`|
`:`>
`;let d,f;for(f=n.length;f>0;--f){let e=n[f-1];if(e!==`
`&&e!==`	`&&e!==` `)break}let p=n.substring(f),m=p.indexOf(`
`);m===-1?d=`-`:n===p||m!==p.length-1?(d=`+`,a&&a()):d=``,p&&=(n=n.slice(0,-p.length),p[p.length-1]===`
`&&(p=p.slice(0,-1)),p.replace(Re,`$&${l}`));let h=!1,g,_=-1;for(g=0;g<n.length;++g){let e=n[g];if(e===` `)h=!0;else if(e===`
`)_=g;else break}let v=n.substring(0,_<g?_+1:g);v&&=(n=n.substring(v.length),v.replace(/\n+/g,`$&${l}`));let y=(h?l?`2`:`1`:``)+d;if(e&&(y+=` `+s(e.replace(/ ?[\r\n]+/g,` `)),i&&i()),!u){let e=n.replace(/\n+/g,`
$&`).replace(/(?:^|\n)([\t ].*)(?:([\n\t ]*)\n(?![\n\t ]))?/g,`$1$2`).replace(/\n+/g,`$&${l}`),i=!1,a=Me(r,!0);o!==`folded`&&t!==L.BLOCK_FOLDED&&(a.onOverflow=()=>{i=!0});let s=Ae(`${v}${e}${p}`,l,Oe,a);if(!i)return`>${y}\n${l}${s}`}return n=n.replace(/\n+/g,`$&${l}`),`|${y}\n${l}${v}${n}${p}`}function Be(e,t,n,r){let{type:i,value:a}=e,{actualString:o,implicitKey:s,indent:c,indentStep:l,inFlow:u}=t;if(s&&a.includes(`
`)||u&&/[[\]{},]/.test(a))return Le(a,t);if(/^[\n\t ,[\]{}#&*!|>'"%@`]|^[?-]$|^[?-][ \t]|[\n:][ \t]|[ \t]\n|[\n\t ]#|[\n\t :]$/.test(a))return s||u||!a.includes(`
`)?Le(a,t):ze(e,t,n,r);if(!s&&!u&&i!==L.PLAIN&&a.includes(`
`))return ze(e,t,n,r);if(Ne(a)){if(c===``)return t.forceBlockIndent=!0,ze(e,t,n,r);if(s&&c===l)return Le(a,t)}let d=a.replace(/\n+/g,`$&\n${c}`);if(o){let e=e=>e.default&&e.tag!==`tag:yaml.org,2002:str`&&e.test?.test(d),{compat:n,tags:r}=t.doc.schema;if(r.some(e)||n?.some(e))return Le(a,t)}return s?d:Ae(d,c,De,Me(t,!1))}function Ve(e,t,n,r){let{implicitKey:i,inFlow:a}=t,o=typeof e.value==`string`?e:Object.assign({},e,{value:String(e.value)}),{type:s}=e;s!==L.QUOTE_DOUBLE&&/[\x00-\x08\x0b-\x1f\x7f-\x9f\u{D800}-\u{DFFF}]/u.test(o.value)&&(s=L.QUOTE_DOUBLE);let c=e=>{switch(e){case L.BLOCK_FOLDED:case L.BLOCK_LITERAL:return i||a?Le(o.value,t):ze(o,t,n,r);case L.QUOTE_DOUBLE:return Fe(o.value,t);case L.QUOTE_SINGLE:return Ie(o.value,t);case L.PLAIN:return Be(o,t,n,r);default:return null}},l=c(s);if(l===null){let{defaultKeyType:e,defaultStringType:n}=t.options,r=i&&e||n;if(l=c(r),l===null)throw Error(`Unsupported default string type ${r}`)}return l}function He(e,t){let n=Object.assign({blockQuote:!0,commentString:Ee,defaultKeyType:null,defaultStringType:`PLAIN`,directives:null,doubleQuotedAsJSON:!1,doubleQuotedMinMultiLineLength:40,falseStr:`false`,flowCollectionPadding:!0,indentSeq:!0,lineWidth:80,minContentWidth:20,nullStr:`null`,simpleKeys:!1,singleQuote:null,trailingComma:!1,trueStr:`true`,verifyAliasOrder:!0},e.schema.toStringOptions,t),r;switch(n.collectionStyle){case`block`:r=!1;break;case`flow`:r=!0;break;default:r=null}return{anchors:new Set,doc:e,flowCollectionPadding:n.flowCollectionPadding?` `:``,indent:``,indentStep:typeof n.indent==`number`?` `.repeat(n.indent):`  `,inFlow:r,options:n}}function Ue(e,t){if(t.tag){let n=e.filter(e=>e.tag===t.tag);if(n.length>0)return n.find(e=>e.format===t.format)??n[0]}let n,r;if(O(t)){r=t.value;let i=e.filter(e=>e.identify?.(r));if(i.length>1){let e=i.filter(e=>e.test);e.length>0&&(i=e)}n=i.find(e=>e.format===t.format)??i.find(e=>!e.format)}else r=t,n=e.find(e=>e.nodeClass&&r instanceof e.nodeClass);if(!n){let e=r?.constructor?.name??(r===null?`null`:typeof r);throw Error(`Tag not resolved for ${e} value`)}return n}function We(e,t,{anchors:n,doc:r}){if(!r.directives)return``;let i=[],a=(O(e)||A(e))&&e.anchor;a&&fe(a)&&(n.add(a),i.push(`&${a}`));let o=e.tag??(t.default?null:t.tag);return o&&i.push(r.directives.tagString(o)),i.join(` `)}function Ge(e,t,n,r){if(D(e))return e.toString(t,n,r);if(T(e)){if(t.doc.directives)return e.toString(t);if(t.resolvedAliases?.has(e))throw TypeError(`Cannot stringify circular structure without alias nodes`);t.resolvedAliases?t.resolvedAliases.add(e):t.resolvedAliases=new Set([e]),e=e.resolve(t.doc)}let i,a=j(e)?e:t.doc.createNode(e,{onTagObj:e=>i=e});i??=Ue(t.doc.schema.tags,a);let o=We(a,i,t);o.length>0&&(t.indentAtStart=(t.indentAtStart??0)+o.length+1);let s=typeof i.stringify==`function`?i.stringify(a,t,n,r):O(a)?Ve(a,t,n,r):a.toString(t,n,r);return o?O(a)||s[0]===`{`||s[0]===`[`?`${o} ${s}`:`${o}\n${t.indent}${s}`:s}function Ke({key:e,value:t},n,r,i){let{allNullValues:a,doc:o,indent:s,indentStep:c,options:{commentString:l,indentSeq:u,simpleKeys:d}}=n,f=j(e)&&e.comment||null;if(d){if(f)throw Error(`With simple keys, key nodes cannot have comments`);if(A(e)||!j(e)&&typeof e==`object`)throw Error(`With simple keys, collection cannot be used as a key value`)}let p=!d&&(!e||f&&t==null&&!n.inFlow||A(e)||(O(e)?e.type===L.BLOCK_FOLDED||e.type===L.BLOCK_LITERAL:typeof e==`object`));n=Object.assign({},n,{allNullValues:!1,implicitKey:!p&&(d||!a),indent:s+c});let m=!1,h=!1,g=Ge(e,n,()=>m=!0,()=>h=!0);if(!p&&!n.inFlow&&g.length>1024){if(d)throw Error(`With simple keys, single line scalar must not span more than 1024 characters`);p=!0}if(n.inFlow){if(a||t==null)return m&&r&&r(),g===``?`?`:p?`? ${g}`:g}else if(a&&!d||t==null&&p)return g=`? ${g}`,f&&!m?g+=z(g,n.indent,l(f)):h&&i&&i(),g;m&&(f=null),p?(f&&(g+=z(g,n.indent,l(f))),g=`? ${g}\n${s}:`):(g=`${g}:`,f&&(g+=z(g,n.indent,l(f))));let _,v,y;j(t)?(_=!!t.spaceBefore,v=t.commentBefore,y=t.comment):(_=!1,v=null,y=null,t&&typeof t==`object`&&(t=o.createNode(t))),n.implicitKey=!1,!p&&!f&&O(t)&&(n.indentAtStart=g.length+1),h=!1,!u&&c.length>=2&&!n.inFlow&&!p&&k(t)&&!t.flow&&!t.tag&&!t.anchor&&(n.indent=n.indent.substring(2));let b=!1,x=Ge(t,n,()=>b=!0,()=>h=!0),S=` `;if(f||_||v){if(S=_?`
`:``,v){let e=l(v);S+=`\n${R(e,n.indent)}`}x===``&&!n.inFlow?S===`
`&&y&&(S=`

`):S+=`\n${n.indent}`}else if(!p&&A(t)){let e=x[0],r=x.indexOf(`
`),i=r!==-1,a=n.inFlow??t.flow??t.items.length===0;if(i||!a){let t=!1;if(i&&(e===`&`||e===`!`)){let n=x.indexOf(` `);e===`&`&&n!==-1&&n<r&&x[n+1]===`!`&&(n=x.indexOf(` `,n+1)),(n===-1||r<n)&&(t=!0)}t||(S=`\n${n.indent}`)}}else(x===``||x[0]===`
`)&&(S=``);return g+=S+x,n.inFlow?b&&r&&r():y&&!b?g+=z(g,n.indent,l(y)):h&&i&&i(),g}function qe(e,t){(e===`debug`||e===`warn`)&&console.warn(t)}var Je=`<<`,B={identify:e=>e===Je||typeof e==`symbol`&&e.description===Je,default:`key`,tag:`tag:yaml.org,2002:merge`,test:/^<<$/,resolve:()=>Object.assign(new L(Symbol(Je)),{addToJSMap:Xe}),stringify:()=>Je},Ye=(e,t)=>(B.identify(t)||O(t)&&(!t.type||t.type===L.PLAIN)&&B.identify(t.value))&&e?.doc.schema.tags.some(e=>e.tag===B.tag&&e.default);function Xe(e,t,n){let r=Qe(e,n);if(k(r))for(let n of r.items)Ze(e,t,n);else if(Array.isArray(r))for(let n of r)Ze(e,t,n);else Ze(e,t,r)}function Ze(e,t,n){let r=Qe(e,n);if(!E(r))throw Error(`Merge sources must be maps or map aliases`);let i=r.toJSON(null,e,Map);for(let[e,n]of i)t instanceof Map?t.has(e)||t.set(e,n):t instanceof Set?t.add(e):Object.prototype.hasOwnProperty.call(t,e)||Object.defineProperty(t,e,{value:n,writable:!0,enumerable:!0,configurable:!0});return t}function Qe(e,t){return e&&T(t)?t.resolve(e.doc,e):t}function $e(e,t,{key:n,value:r}){if(j(n)&&n.addToJSMap)n.addToJSMap(e,t,r);else if(Ye(e,n))Xe(e,t,r);else{let i=I(n,``,e);if(t instanceof Map)t.set(i,I(r,i,e));else if(t instanceof Set)t.add(i);else{let a=et(n,i,e),o=I(r,a,e);a in t?Object.defineProperty(t,a,{value:o,writable:!0,enumerable:!0,configurable:!0}):t[a]=o}}return t}function et(e,t,n){if(t===null)return``;if(typeof t!=`object`)return String(t);if(j(e)&&n?.doc){let t=He(n.doc,{});t.anchors=new Set;for(let e of n.anchors.keys())t.anchors.add(e.anchor);t.inFlow=!0,t.inStringifyKey=!0;let r=e.toString(t);if(!n.mapKeyWarned){let e=JSON.stringify(r);e.length>40&&(e=e.substring(0,36)+`..."`),qe(n.doc.options.logLevel,`Keys with collection values will be stringified due to JS Object restrictions: ${e}. Set mapAsMap: true to use object keys.`),n.mapKeyWarned=!0}return r}return JSON.stringify(t)}function tt(e,t,n){return new V(Se(e,void 0,n),Se(t,void 0,n))}var V=class e{constructor(e,t=null){Object.defineProperty(this,w,{value:ee}),this.key=e,this.value=t}clone(t){let{key:n,value:r}=this;return j(n)&&(n=n.clone(t)),j(r)&&(r=r.clone(t)),new e(n,r)}toJSON(e,t){return $e(t,t?.mapAsMap?new Map:{},this)}toString(e,t,n){return e?.doc?Ke(this,e,t,n):JSON.stringify(this)}};function nt(e,t,n){return(t.inFlow??e.flow?it:rt)(e,t,n)}function rt({comment:e,items:t},n,{blockItemPrefix:r,flowChars:i,itemIndent:a,onChompKeep:o,onComment:s}){let{indent:c,options:{commentString:l}}=n,u=Object.assign({},n,{indent:a,type:null}),d=!1,f=[];for(let e=0;e<t.length;++e){let i=t[e],o=null;if(j(i))!d&&i.spaceBefore&&f.push(``),at(n,f,i.commentBefore,d),i.comment&&(o=i.comment);else if(D(i)){let e=j(i.key)?i.key:null;e&&(!d&&e.spaceBefore&&f.push(``),at(n,f,e.commentBefore,d))}d=!1;let s=Ge(i,u,()=>o=null,()=>d=!0);o&&(s+=z(s,a,l(o))),d&&o&&(d=!1),f.push(r+s)}let p;if(f.length===0)p=i.start+i.end;else{p=f[0];for(let e=1;e<f.length;++e){let t=f[e];p+=t?`\n${c}${t}`:`
`}}return e?(p+=`
`+R(l(e),c),s&&s()):d&&o&&o(),p}function it({items:e},t,{flowChars:n,itemIndent:r}){let{indent:i,indentStep:a,flowCollectionPadding:o,options:{commentString:s}}=t;r+=a;let c=Object.assign({},t,{indent:r,inFlow:!0,type:null}),l=!1,u=0,d=[];for(let n=0;n<e.length;++n){let i=e[n],a=null;if(j(i))i.spaceBefore&&d.push(``),at(t,d,i.commentBefore,!1),i.comment&&(a=i.comment);else if(D(i)){let e=j(i.key)?i.key:null;e&&(e.spaceBefore&&d.push(``),at(t,d,e.commentBefore,!1),e.comment&&(l=!0));let n=j(i.value)?i.value:null;n?(n.comment&&(a=n.comment),n.commentBefore&&(l=!0)):i.value==null&&e?.comment&&(a=e.comment)}a&&(l=!0);let o=Ge(i,c,()=>a=null);l||=d.length>u||o.includes(`
`),n<e.length-1?o+=`,`:t.options.trailingComma&&(t.options.lineWidth>0&&(l||=d.reduce((e,t)=>e+t.length+2,2)+(o.length+2)>t.options.lineWidth),l&&(o+=`,`)),a&&(o+=z(o,r,s(a))),d.push(o),u=d.length}let{start:f,end:p}=n;if(d.length===0)return f+p;if(!l){let e=d.reduce((e,t)=>e+t.length+2,2);l=t.options.lineWidth>0&&e>t.options.lineWidth}if(l){let e=f;for(let t of d)e+=t?`\n${a}${i}${t}`:`
`;return`${e}\n${i}${p}`}return`${f}${o}${d.join(` `)}${o}${p}`}function at({indent:e,options:{commentString:t}},n,r,i){if(r&&i&&(r=r.replace(/^\n+/,``)),r){let i=R(t(r),e);n.push(i.trimStart())}}function H(e,t){let n=O(t)?t.value:t;for(let r of e)if(D(r)&&(r.key===t||r.key===n||O(r.key)&&r.key.value===n))return r}var U=class extends Te{static get tagName(){return`tag:yaml.org,2002:map`}constructor(e){super(S,e),this.items=[]}static from(e,t,n){let{keepUndefined:r,replacer:i}=n,a=new this(e),o=(e,o)=>{if(typeof i==`function`)o=i.call(t,e,o);else if(Array.isArray(i)&&!i.includes(e))return;(o!==void 0||r)&&a.items.push(tt(e,o,n))};if(t instanceof Map)for(let[e,n]of t)o(e,n);else if(t&&typeof t==`object`)for(let e of Object.keys(t))o(e,t[e]);return typeof e.sortMapEntries==`function`&&a.items.sort(e.sortMapEntries),a}add(e,t){let n;n=D(e)?e:!e||typeof e!=`object`||!(`key`in e)?new V(e,e?.value):new V(e.key,e.value);let r=H(this.items,n.key),i=this.schema?.sortMapEntries;if(r){if(!t)throw Error(`Key ${n.key} already set`);O(r.value)&&ye(n.value)?r.value.value=n.value:r.value=n.value}else if(i){let e=this.items.findIndex(e=>i(n,e)<0);e===-1?this.items.push(n):this.items.splice(e,0,n)}else this.items.push(n)}delete(e){let t=H(this.items,e);return t?this.items.splice(this.items.indexOf(t),1).length>0:!1}get(e,t){let n=H(this.items,e)?.value;return(!t&&O(n)?n.value:n)??void 0}has(e){return!!H(this.items,e)}set(e,t){this.add(new V(e,t),!0)}toJSON(e,t,n){let r=n?new n:t?.mapAsMap?new Map:{};t?.onCreate&&t.onCreate(r);for(let e of this.items)$e(t,r,e);return r}toString(e,t,n){if(!e)return JSON.stringify(this);for(let e of this.items)if(!D(e))throw Error(`Map items must all be pairs; found ${JSON.stringify(e)} instead`);return!e.allNullValues&&this.hasAllNullValues(!1)&&(e=Object.assign({},e,{allNullValues:!0})),nt(this,e,{blockItemPrefix:``,flowChars:{start:`{`,end:`}`},itemIndent:e.indent||``,onChompKeep:n,onComment:t})}},W={collection:`map`,default:!0,nodeClass:U,tag:`tag:yaml.org,2002:map`,resolve(e,t){return E(e)||t(`Expected a mapping for this tag`),e},createNode:(e,t,n)=>U.from(e,t,n)},G=class extends Te{static get tagName(){return`tag:yaml.org,2002:seq`}constructor(e){super(te,e),this.items=[]}add(e){this.items.push(e)}delete(e){let t=ot(e);return typeof t==`number`&&this.items.splice(t,1).length>0}get(e,t){let n=ot(e);if(typeof n!=`number`)return;let r=this.items[n];return!t&&O(r)?r.value:r}has(e){let t=ot(e);return typeof t==`number`&&t<this.items.length}set(e,t){let n=ot(e);if(typeof n!=`number`)throw Error(`Expected a valid index, not ${e}.`);let r=this.items[n];O(r)&&ye(t)?r.value=t:this.items[n]=t}toJSON(e,t){let n=[];t?.onCreate&&t.onCreate(n);let r=0;for(let e of this.items)n.push(I(e,String(r++),t));return n}toString(e,t,n){return e?nt(this,e,{blockItemPrefix:`- `,flowChars:{start:`[`,end:`]`},itemIndent:(e.indent||``)+`  `,onChompKeep:n,onComment:t}):JSON.stringify(this)}static from(e,t,n){let{replacer:r}=n,i=new this(e);if(t&&Symbol.iterator in Object(t)){let e=0;for(let a of t){if(typeof r==`function`){let n=t instanceof Set?a:String(e++);a=r.call(t,n,a)}i.items.push(Se(a,void 0,n))}}return i}};function ot(e){let t=O(e)?e.value:e;return t&&typeof t==`string`&&(t=Number(t)),typeof t==`number`&&Number.isInteger(t)&&t>=0?t:null}var K={collection:`seq`,default:!0,nodeClass:G,tag:`tag:yaml.org,2002:seq`,resolve(e,t){return k(e)||t(`Expected a sequence for this tag`),e},createNode:(e,t,n)=>G.from(e,t,n)},st={identify:e=>typeof e==`string`,default:!0,tag:`tag:yaml.org,2002:str`,resolve:e=>e,stringify(e,t,n,r){return t=Object.assign({actualString:!0},t),Ve(e,t,n,r)}},ct={identify:e=>e==null,createNode:()=>new L(null),default:!0,tag:`tag:yaml.org,2002:null`,test:/^(?:~|[Nn]ull|NULL)?$/,resolve:()=>new L(null),stringify:({source:e},t)=>typeof e==`string`&&ct.test.test(e)?e:t.options.nullStr},lt={identify:e=>typeof e==`boolean`,default:!0,tag:`tag:yaml.org,2002:bool`,test:/^(?:[Tt]rue|TRUE|[Ff]alse|FALSE)$/,resolve:e=>new L(e[0]===`t`||e[0]===`T`),stringify({source:e,value:t},n){return e&&lt.test.test(e)&&t===(e[0]===`t`||e[0]===`T`)?e:t?n.options.trueStr:n.options.falseStr}};function q({format:e,minFractionDigits:t,tag:n,value:r}){if(typeof r==`bigint`)return String(r);let i=typeof r==`number`?r:Number(r);if(!isFinite(i))return isNaN(i)?`.nan`:i<0?`-.inf`:`.inf`;let a=Object.is(r,-0)?`-0`:JSON.stringify(r);if(!e&&t&&(!n||n===`tag:yaml.org,2002:float`)&&/^-?\d/.test(a)&&!a.includes(`e`)){let e=a.indexOf(`.`);e<0&&(e=a.length,a+=`.`);let n=t-(a.length-e-1);for(;n-->0;)a+=`0`}return a}var ut={identify:e=>typeof e==`number`,default:!0,tag:`tag:yaml.org,2002:float`,test:/^(?:[-+]?\.(?:inf|Inf|INF)|\.nan|\.NaN|\.NAN)$/,resolve:e=>e.slice(-3).toLowerCase()===`nan`?NaN:e[0]===`-`?-1/0:1/0,stringify:q},dt={identify:e=>typeof e==`number`,default:!0,tag:`tag:yaml.org,2002:float`,format:`EXP`,test:/^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+$/,resolve:e=>parseFloat(e),stringify(e){let t=Number(e.value);return isFinite(t)?t.toExponential():q(e)}},ft={identify:e=>typeof e==`number`,default:!0,tag:`tag:yaml.org,2002:float`,test:/^[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)$/,resolve(e){let t=new L(parseFloat(e)),n=e.indexOf(`.`);return n!==-1&&e[e.length-1]===`0`&&(t.minFractionDigits=e.length-n-1),t},stringify:q},pt=e=>typeof e==`bigint`||Number.isInteger(e),mt=(e,t,n,{intAsBigInt:r})=>r?BigInt(e):parseInt(e.substring(t),n);function ht(e,t,n){let{value:r}=e;return pt(r)&&r>=0?n+r.toString(t):q(e)}var gt={identify:e=>pt(e)&&e>=0,default:!0,tag:`tag:yaml.org,2002:int`,format:`OCT`,test:/^0o[0-7]+$/,resolve:(e,t,n)=>mt(e,2,8,n),stringify:e=>ht(e,8,`0o`)},_t={identify:pt,default:!0,tag:`tag:yaml.org,2002:int`,test:/^[-+]?[0-9]+$/,resolve:(e,t,n)=>mt(e,0,10,n),stringify:q},vt={identify:e=>pt(e)&&e>=0,default:!0,tag:`tag:yaml.org,2002:int`,format:`HEX`,test:/^0x[0-9a-fA-F]+$/,resolve:(e,t,n)=>mt(e,2,16,n),stringify:e=>ht(e,16,`0x`)},yt=[W,K,st,ct,lt,gt,_t,vt,ut,dt,ft];function bt(e){return typeof e==`bigint`||Number.isInteger(e)}var xt=({value:e})=>JSON.stringify(e),St=[{identify:e=>typeof e==`string`,default:!0,tag:`tag:yaml.org,2002:str`,resolve:e=>e,stringify:xt},{identify:e=>e==null,createNode:()=>new L(null),default:!0,tag:`tag:yaml.org,2002:null`,test:/^null$/,resolve:()=>null,stringify:xt},{identify:e=>typeof e==`boolean`,default:!0,tag:`tag:yaml.org,2002:bool`,test:/^true$|^false$/,resolve:e=>e===`true`,stringify:xt},{identify:bt,default:!0,tag:`tag:yaml.org,2002:int`,test:/^-?(?:0|[1-9][0-9]*)$/,resolve:(e,t,{intAsBigInt:n})=>n?BigInt(e):parseInt(e,10),stringify:({value:e})=>bt(e)?e.toString():JSON.stringify(e)},{identify:e=>typeof e==`number`,default:!0,tag:`tag:yaml.org,2002:float`,test:/^-?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?$/,resolve:e=>parseFloat(e),stringify:xt}],Ct=[W,K].concat(St,{default:!0,tag:``,test:/^/,resolve(e,t){return t(`Unresolved plain scalar ${JSON.stringify(e)}`),e}}),wt={identify:e=>e instanceof Uint8Array,default:!1,tag:`tag:yaml.org,2002:binary`,resolve(e,t){if(typeof atob==`function`){let t=atob(e.replace(/[\n\r]/g,``)),n=new Uint8Array(t.length);for(let e=0;e<t.length;++e)n[e]=t.charCodeAt(e);return n}return t(`This environment does not support reading binary tags; either Buffer or atob is required`),e},stringify({comment:e,type:t,value:n},r,i,a){if(!n)return``;let o=n,s;if(typeof btoa==`function`){let e=``;for(let t=0;t<o.length;++t)e+=String.fromCharCode(o[t]);s=btoa(e)}else throw Error(`This environment does not support writing binary tags; either Buffer or btoa is required`);if(t??=L.BLOCK_LITERAL,t!==L.QUOTE_DOUBLE){let e=Math.max(r.options.lineWidth-r.indent.length,r.options.minContentWidth),n=Math.ceil(s.length/e),i=Array(n);for(let t=0,r=0;t<n;++t,r+=e)i[t]=s.substr(r,e);s=i.join(t===L.BLOCK_LITERAL?`
`:` `)}return Ve({comment:e,type:t,value:s},r,i,a)}};function Tt(e,t){if(k(e))for(let n=0;n<e.items.length;++n){let r=e.items[n];if(!D(r)){if(E(r)){r.items.length>1&&t(`Each pair must have its own sequence indicator`);let e=r.items[0]||new V(new L(null));if(r.commentBefore&&(e.key.commentBefore=e.key.commentBefore?`${r.commentBefore}\n${e.key.commentBefore}`:r.commentBefore),r.comment){let t=e.value??e.key;t.comment=t.comment?`${r.comment}\n${t.comment}`:r.comment}r=e}e.items[n]=D(r)?r:new V(r)}}else t(`Expected a sequence for this tag`);return e}function Et(e,t,n){let{replacer:r}=n,i=new G(e);i.tag=`tag:yaml.org,2002:pairs`;let a=0;if(t&&Symbol.iterator in Object(t))for(let e of t){typeof r==`function`&&(e=r.call(t,String(a++),e));let o,s;if(Array.isArray(e)){if(e.length===2)o=e[0],s=e[1];else throw TypeError(`Expected [key, value] tuple: ${e}`)}else if(e&&e instanceof Object){let t=Object.keys(e);if(t.length===1)o=t[0],s=e[o];else throw TypeError(`Expected tuple with one key, not ${t.length} keys`)}else o=e;i.items.push(tt(o,s,n))}return i}var Dt={collection:`seq`,default:!1,tag:`tag:yaml.org,2002:pairs`,resolve:Tt,createNode:Et},Ot=class e extends G{constructor(){super(),this.add=U.prototype.add.bind(this),this.delete=U.prototype.delete.bind(this),this.get=U.prototype.get.bind(this),this.has=U.prototype.has.bind(this),this.set=U.prototype.set.bind(this),this.tag=e.tag}toJSON(e,t){if(!t)return super.toJSON(e);let n=new Map;t?.onCreate&&t.onCreate(n);for(let e of this.items){let r,i;if(D(e)?(r=I(e.key,``,t),i=I(e.value,r,t)):r=I(e,``,t),n.has(r))throw Error(`Ordered maps must not include duplicate keys`);n.set(r,i)}return n}static from(e,t,n){let r=Et(e,t,n),i=new this;return i.items=r.items,i}};Ot.tag=`tag:yaml.org,2002:omap`;var kt={collection:`seq`,identify:e=>e instanceof Map,nodeClass:Ot,default:!1,tag:`tag:yaml.org,2002:omap`,resolve(e,t){let n=Tt(e,t),r=[];for(let{key:e}of n.items)O(e)&&(r.includes(e.value)?t(`Ordered maps must not include duplicate keys: ${e.value}`):r.push(e.value));return Object.assign(new Ot,n)},createNode:(e,t,n)=>Ot.from(e,t,n)};function At({value:e,source:t},n){return t&&(e?jt:Mt).test.test(t)?t:e?n.options.trueStr:n.options.falseStr}var jt={identify:e=>e===!0,default:!0,tag:`tag:yaml.org,2002:bool`,test:/^(?:Y|y|[Yy]es|YES|[Tt]rue|TRUE|[Oo]n|ON)$/,resolve:()=>new L(!0),stringify:At},Mt={identify:e=>e===!1,default:!0,tag:`tag:yaml.org,2002:bool`,test:/^(?:N|n|[Nn]o|NO|[Ff]alse|FALSE|[Oo]ff|OFF)$/,resolve:()=>new L(!1),stringify:At},Nt={identify:e=>typeof e==`number`,default:!0,tag:`tag:yaml.org,2002:float`,test:/^(?:[-+]?\.(?:inf|Inf|INF)|\.nan|\.NaN|\.NAN)$/,resolve:e=>e.slice(-3).toLowerCase()===`nan`?NaN:e[0]===`-`?-1/0:1/0,stringify:q},Pt={identify:e=>typeof e==`number`,default:!0,tag:`tag:yaml.org,2002:float`,format:`EXP`,test:/^[-+]?(?:[0-9][0-9_]*)?(?:\.[0-9_]*)?[eE][-+]?[0-9]+$/,resolve:e=>parseFloat(e.replace(/_/g,``)),stringify(e){let t=Number(e.value);return isFinite(t)?t.toExponential():q(e)}},Ft={identify:e=>typeof e==`number`,default:!0,tag:`tag:yaml.org,2002:float`,test:/^[-+]?(?:[0-9][0-9_]*)?\.[0-9_]*$/,resolve(e){let t=new L(parseFloat(e.replace(/_/g,``))),n=e.indexOf(`.`);if(n!==-1){let r=e.substring(n+1).replace(/_/g,``);r[r.length-1]===`0`&&(t.minFractionDigits=r.length)}return t},stringify:q},It=e=>typeof e==`bigint`||Number.isInteger(e);function Lt(e,t,n,{intAsBigInt:r}){let i=e[0];if((i===`-`||i===`+`)&&(t+=1),e=e.substring(t).replace(/_/g,``),r){switch(n){case 2:e=`0b${e}`;break;case 8:e=`0o${e}`;break;case 16:e=`0x${e}`}let t=BigInt(e);return i===`-`?BigInt(-1)*t:t}let a=parseInt(e,n);return i===`-`?-1*a:a}function Rt(e,t,n){let{value:r}=e;if(It(r)){let e=r.toString(t);return r<0?`-`+n+e.substr(1):n+e}return q(e)}var zt={identify:It,default:!0,tag:`tag:yaml.org,2002:int`,format:`BIN`,test:/^[-+]?0b[0-1_]+$/,resolve:(e,t,n)=>Lt(e,2,2,n),stringify:e=>Rt(e,2,`0b`)},Bt={identify:It,default:!0,tag:`tag:yaml.org,2002:int`,format:`OCT`,test:/^[-+]?0[0-7_]+$/,resolve:(e,t,n)=>Lt(e,1,8,n),stringify:e=>Rt(e,8,`0`)},Vt={identify:It,default:!0,tag:`tag:yaml.org,2002:int`,test:/^[-+]?[0-9][0-9_]*$/,resolve:(e,t,n)=>Lt(e,0,10,n),stringify:q},Ht={identify:It,default:!0,tag:`tag:yaml.org,2002:int`,format:`HEX`,test:/^[-+]?0x[0-9a-fA-F_]+$/,resolve:(e,t,n)=>Lt(e,2,16,n),stringify:e=>Rt(e,16,`0x`)},Ut=class e extends U{constructor(t){super(t),this.tag=e.tag}add(e){let t;t=D(e)?e:e&&typeof e==`object`&&`key`in e&&`value`in e&&e.value===null?new V(e.key,null):new V(e,null),H(this.items,t.key)||this.items.push(t)}get(e,t){let n=H(this.items,e);return!t&&D(n)?O(n.key)?n.key.value:n.key:n}set(e,t){if(typeof t!=`boolean`)throw Error(`Expected boolean value for set(key, value) in a YAML set, not ${typeof t}`);let n=H(this.items,e);n&&!t?this.items.splice(this.items.indexOf(n),1):!n&&t&&this.items.push(new V(e))}toJSON(e,t){return super.toJSON(e,t,Set)}toString(e,t,n){if(!e)return JSON.stringify(this);if(this.hasAllNullValues(!0))return super.toString(Object.assign({},e,{allNullValues:!0}),t,n);throw Error(`Set items must all have null values`)}static from(e,t,n){let{replacer:r}=n,i=new this(e);if(t&&Symbol.iterator in Object(t))for(let e of t)typeof r==`function`&&(e=r.call(t,e,e)),i.items.push(tt(e,null,n));return i}};Ut.tag=`tag:yaml.org,2002:set`;var Wt={collection:`map`,identify:e=>e instanceof Set,nodeClass:Ut,default:!1,tag:`tag:yaml.org,2002:set`,createNode:(e,t,n)=>Ut.from(e,t,n),resolve(e,t){if(E(e)){if(e.hasAllNullValues(!0))return Object.assign(new Ut,e);t(`Set items must all have null values`)}else t(`Expected a mapping for this tag`);return e}};function Gt(e,t){let n=e[0],r=n===`-`||n===`+`?e.substring(1):e,i=e=>t?BigInt(e):Number(e),a=r.replace(/_/g,``).split(`:`).reduce((e,t)=>e*i(60)+i(t),i(0));return n===`-`?i(-1)*a:a}function Kt(e){let{value:t}=e,n=e=>e;if(typeof t==`bigint`)n=e=>BigInt(e);else if(isNaN(t)||!isFinite(t))return q(e);let r=``;t<0&&(r=`-`,t*=n(-1));let i=n(60),a=[t%i];return t<60?a.unshift(0):(t=(t-a[0])/i,a.unshift(t%i),t>=60&&(t=(t-a[0])/i,a.unshift(t))),r+a.map(e=>String(e).padStart(2,`0`)).join(`:`).replace(/000000\d*$/,``)}var qt={identify:e=>typeof e==`bigint`||Number.isInteger(e),default:!0,tag:`tag:yaml.org,2002:int`,format:`TIME`,test:/^[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+$/,resolve:(e,t,{intAsBigInt:n})=>Gt(e,n),stringify:Kt},Jt={identify:e=>typeof e==`number`,default:!0,tag:`tag:yaml.org,2002:float`,format:`TIME`,test:/^[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*$/,resolve:e=>Gt(e,!1),stringify:Kt},Yt={identify:e=>e instanceof Date,default:!0,tag:`tag:yaml.org,2002:timestamp`,test:RegExp(`^([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})(?:(?:t|T|[ \\t]+)([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2}(\\.[0-9]+)?)(?:[ \\t]*(Z|[-+][012]?[0-9](?::[0-9]{2})?))?)?$`),resolve(e){let t=e.match(Yt.test);if(!t)throw Error(`!!timestamp expects a date, starting with yyyy-mm-dd`);let[,n,r,i,a,o,s]=t.map(Number),c=t[7]?Number((t[7]+`00`).substr(1,3)):0,l=Date.UTC(n,r-1,i,a||0,o||0,s||0,c),u=t[8];if(u&&u!==`Z`){let e=Gt(u,!1);Math.abs(e)<30&&(e*=60),l-=6e4*e}return new Date(l)},stringify:({value:e})=>e?.toISOString().replace(/(T00:00:00)?\.000Z$/,``)??``},Xt=[W,K,st,ct,jt,Mt,zt,Bt,Vt,Ht,Nt,Pt,Ft,wt,B,kt,Dt,Wt,qt,Jt,Yt],Zt=new Map([[`core`,yt],[`failsafe`,[W,K,st]],[`json`,Ct],[`yaml11`,Xt],[`yaml-1.1`,Xt]]),Qt={binary:wt,bool:lt,float:ft,floatExp:dt,floatNaN:ut,floatTime:Jt,int:_t,intHex:vt,intOct:gt,intTime:qt,map:W,merge:B,null:ct,omap:kt,pairs:Dt,seq:K,set:Wt,timestamp:Yt},$t={"tag:yaml.org,2002:binary":wt,"tag:yaml.org,2002:merge":B,"tag:yaml.org,2002:omap":kt,"tag:yaml.org,2002:pairs":Dt,"tag:yaml.org,2002:set":Wt,"tag:yaml.org,2002:timestamp":Yt};function en(e,t,n){let r=Zt.get(t);if(r&&!e)return n&&!r.includes(B)?r.concat(B):r.slice();let i=r;if(!i){if(Array.isArray(e))i=[];else{let e=Array.from(Zt.keys()).filter(e=>e!==`yaml11`).map(e=>JSON.stringify(e)).join(`, `);throw Error(`Unknown schema "${t}"; use one of ${e} or define customTags array`)}}if(Array.isArray(e))for(let t of e)i=i.concat(t);else typeof e==`function`&&(i=e(i.slice()));return n&&(i=i.concat(B)),i.reduce((e,t)=>{let n=typeof t==`string`?Qt[t]:t;if(!n){let e=JSON.stringify(t),n=Object.keys(Qt).map(e=>JSON.stringify(e)).join(`, `);throw Error(`Unknown custom tag ${e}; use one of ${n}`)}return e.includes(n)||e.push(n),e},[])}var tn=(e,t)=>e.key<t.key?-1:+(e.key>t.key),nn=class e{constructor({compat:e,customTags:t,merge:n,resolveKnownTags:r,schema:i,sortMapEntries:a,toStringDefaults:o}){this.compat=Array.isArray(e)?en(e,`compat`):e?en(null,e):null,this.name=typeof i==`string`&&i||`core`,this.knownTags=r?$t:{},this.tags=en(t,this.name,n),this.toStringOptions=o??null,Object.defineProperty(this,S,{value:W}),Object.defineProperty(this,C,{value:st}),Object.defineProperty(this,te,{value:K}),this.sortMapEntries=typeof a==`function`?a:a===!0?tn:null}clone(){let t=Object.create(e.prototype,Object.getOwnPropertyDescriptors(this));return t.tags=this.tags.slice(),t}};function rn(e,t){let n=[],r=t.directives===!0;if(t.directives!==!1&&e.directives){let t=e.directives.toString(e);t?(n.push(t),r=!0):e.directives.docStart&&(r=!0)}r&&n.push(`---`);let i=He(e,t),{commentString:a}=i.options;if(e.commentBefore){n.length!==1&&n.unshift(``);let t=a(e.commentBefore);n.unshift(R(t,``))}let o=!1,s=null;if(e.contents){if(j(e.contents)){if(e.contents.spaceBefore&&r&&n.push(``),e.contents.commentBefore){let t=a(e.contents.commentBefore);n.push(R(t,``))}i.forceBlockIndent=!!e.comment,s=e.contents.comment}let t=s?void 0:()=>o=!0,c=Ge(e.contents,i,()=>s=null,t);s&&(c+=z(c,``,a(s))),(c[0]===`|`||c[0]===`>`)&&n[n.length-1]===`---`?n[n.length-1]=`--- ${c}`:n.push(c)}else n.push(Ge(e.contents,i));if(e.directives?.docEnd){if(e.comment){let t=a(e.comment);t.includes(`
`)?(n.push(`...`),n.push(R(t,``))):n.push(`... ${t}`)}else n.push(`...`)}else{let t=e.comment;t&&o&&(t=t.replace(/^\n+/,``)),t&&((!o||s)&&n[n.length-1]!==``&&n.push(``),n.push(R(a(t),``)))}return n.join(`
`)+`
`}var an=class e{constructor(e,t,n){this.commentBefore=null,this.comment=null,this.errors=[],this.warnings=[],Object.defineProperty(this,w,{value:x});let r=null;typeof t==`function`||Array.isArray(t)?r=t:n===void 0&&t&&(n=t,t=void 0);let i=Object.assign({intAsBigInt:!1,keepSourceTokens:!1,logLevel:`warn`,prettyErrors:!0,strict:!0,stringKeys:!1,uniqueKeys:!0,version:`1.2`},n);this.options=i;let{version:a}=i;n?._directives?(this.directives=n._directives.atDocument(),this.directives.yaml.explicit&&(a=this.directives.yaml.version)):this.directives=new P({version:a}),this.setSchema(a,n),this.contents=e===void 0?null:this.createNode(e,r,n)}clone(){let t=Object.create(e.prototype,{[w]:{value:x}});return t.commentBefore=this.commentBefore,t.comment=this.comment,t.errors=this.errors.slice(),t.warnings=this.warnings.slice(),t.options=Object.assign({},this.options),this.directives&&(t.directives=this.directives.clone()),t.schema=this.schema.clone(),t.contents=j(this.contents)?this.contents.clone(t.schema):this.contents,this.range&&(t.range=this.range.slice()),t}add(e){on(this.contents)&&this.contents.add(e)}addIn(e,t){on(this.contents)&&this.contents.addIn(e,t)}createAlias(e,t){if(!e.anchor){let n=pe(this);e.anchor=!t||n.has(t)?me(t||`a`,n):t}return new _e(e.anchor)}createNode(e,t,n){let r;if(typeof t==`function`)e=t.call({"":e},``,e),r=t;else if(Array.isArray(t)){let e=t.filter(e=>typeof e==`number`||e instanceof String||e instanceof Number).map(String);e.length>0&&(t=t.concat(e)),r=t}else n===void 0&&t&&(n=t,t=void 0);let{aliasDuplicateObjects:i,anchorPrefix:a,flow:o,keepUndefined:s,onTagObj:c,tag:l}=n??{},{onAnchor:u,setAnchors:d,sourceObjects:f}=he(this,a||`a`),p={aliasDuplicateObjects:i??!0,keepUndefined:s??!1,onAnchor:u,onTagObj:c,replacer:r,schema:this.schema,sourceObjects:f},m=Se(e,l,p);return o&&A(m)&&(m.flow=!0),d(),m}createPair(e,t,n={}){return new V(this.createNode(e,null,n),this.createNode(t,null,n))}delete(e){return on(this.contents)?this.contents.delete(e):!1}deleteIn(e){return we(e)?this.contents!=null&&(this.contents=null,!0):on(this.contents)?this.contents.deleteIn(e):!1}get(e,t){return A(this.contents)?this.contents.get(e,t):void 0}getIn(e,t){return we(e)?!t&&O(this.contents)?this.contents.value:this.contents:A(this.contents)?this.contents.getIn(e,t):void 0}has(e){return A(this.contents)?this.contents.has(e):!1}hasIn(e){return we(e)?this.contents!==void 0:A(this.contents)?this.contents.hasIn(e):!1}set(e,t){this.contents==null?this.contents=Ce(this.schema,[e],t):on(this.contents)&&this.contents.set(e,t)}setIn(e,t){we(e)?this.contents=t:this.contents==null?this.contents=Ce(this.schema,Array.from(e),t):on(this.contents)&&this.contents.setIn(e,t)}setSchema(e,t={}){typeof e==`number`&&(e=String(e));let n;switch(e){case`1.1`:this.directives?this.directives.yaml.version=`1.1`:this.directives=new P({version:`1.1`}),n={resolveKnownTags:!1,schema:`yaml-1.1`};break;case`1.2`:case`next`:this.directives?this.directives.yaml.version=e:this.directives=new P({version:e}),n={resolveKnownTags:!0,schema:`core`};break;case null:this.directives&&delete this.directives,n=null;break;default:{let t=JSON.stringify(e);throw Error(`Expected '1.1', '1.2' or null as first argument, but found: ${t}`)}}if(t.schema instanceof Object)this.schema=t.schema;else if(n)this.schema=new nn(Object.assign(n,t));else throw Error(`With a null YAML version, the { schema: Schema } option is required`)}toJS({json:e,jsonArg:t,mapAsMap:n,maxAliasCount:r,onAnchor:i,reviver:a}={}){let o={anchors:new Map,doc:this,keep:!e,mapAsMap:n===!0,mapKeyWarned:!1,maxAliasCount:typeof r==`number`?r:100},s=I(this.contents,t??``,o);if(typeof i==`function`)for(let{count:e,res:t}of o.anchors.values())i(t,e);return typeof a==`function`?F(a,{"":s},``,s):s}toJSON(e,t){return this.toJS({json:!0,jsonArg:e,mapAsMap:!1,onAnchor:t})}toString(e={}){if(this.errors.length>0)throw Error(`Document with errors cannot be stringified`);if(`indent`in e&&(!Number.isInteger(e.indent)||Number(e.indent)<=0)){let t=JSON.stringify(e.indent);throw Error(`"indent" option must be a positive integer, not ${t}`)}return rn(this,e)}};function on(e){if(A(e))return!0;throw Error(`Expected a YAML collection as document contents`)}var sn=class extends Error{constructor(e,t,n,r){super(),this.name=e,this.code=n,this.message=r,this.pos=t}},cn=class extends sn{constructor(e,t,n){super(`YAMLParseError`,e,t,n)}},ln=class extends sn{constructor(e,t,n){super(`YAMLWarning`,e,t,n)}},un=(e,t)=>n=>{if(n.pos[0]===-1)return;n.linePos=n.pos.map(e=>t.linePos(e));let{line:r,col:i}=n.linePos[0];n.message+=` at line ${r}, column ${i}`;let a=i-1,o=e.substring(t.lineStarts[r-1],t.lineStarts[r]).replace(/[\n\r]+$/,``);if(a>=60&&o.length>80){let e=Math.min(a-39,o.length-79);o=`…`+o.substring(e),a-=e-1}if(o.length>80&&(o=o.substring(0,79)+`…`),r>1&&/^ *$/.test(o.substring(0,a))){let n=e.substring(t.lineStarts[r-2],t.lineStarts[r-1]);n.length>80&&(n=n.substring(0,79)+`…
`),o=n+o}if(/[^ ]/.test(o)){let e=1,t=n.linePos[1];t?.line===r&&t.col>i&&(e=Math.max(1,Math.min(t.col-i,80-a)));let s=` `.repeat(a)+`^`.repeat(e);n.message+=`:\n\n${o}\n${s}\n`}};function dn(e,{flow:t,indicator:n,next:r,offset:i,onError:a,parentIndent:o,startOnNewline:s}){let c=!1,l=s,u=s,d=``,f=``,p=!1,m=!1,h=null,g=null,_=null,v=null,y=null,b=null,x=null;for(let i of e)switch(m&&=(i.type!==`space`&&i.type!==`newline`&&i.type!==`comma`&&a(i.offset,`MISSING_CHAR`,`Tags and anchors must be separated from the next token by white space`),!1),h&&=(l&&i.type!==`comment`&&i.type!==`newline`&&a(h,`TAB_AS_INDENT`,`Tabs are not allowed as indentation`),null),i.type){case`space`:!t&&(n!==`doc-start`||r?.type!==`flow-collection`)&&i.source.includes(`	`)&&(h=i),u=!0;break;case`comment`:{u||a(i,`MISSING_CHAR`,`Comments must be separated from other tokens by white space characters`);let e=i.source.substring(1)||` `;d?d+=f+e:d=e,f=``,l=!1;break}case`newline`:l?d?d+=i.source:b&&n===`seq-item-ind`||(c=!0):f+=i.source,l=!0,p=!0,(g||_)&&(v=i),u=!0;break;case`anchor`:g&&a(i,`MULTIPLE_ANCHORS`,`A node can have at most one anchor`),i.source.endsWith(`:`)&&a(i.offset+i.source.length-1,`BAD_ALIAS`,`Anchor ending in : is ambiguous`,!0),g=i,x??=i.offset,l=!1,u=!1,m=!0;break;case`tag`:_&&a(i,`MULTIPLE_TAGS`,`A node can have at most one tag`),_=i,x??=i.offset,l=!1,u=!1,m=!0;break;case n:(g||_)&&a(i,`BAD_PROP_ORDER`,`Anchors and tags must be after the ${i.source} indicator`),b&&a(i,`UNEXPECTED_TOKEN`,`Unexpected ${i.source} in ${t??`collection`}`),b=i,l=n===`seq-item-ind`||n===`explicit-key-ind`,u=!1;break;case`comma`:if(t){y&&a(i,`UNEXPECTED_TOKEN`,`Unexpected , in ${t}`),y=i,l=!1,u=!1;break}default:a(i,`UNEXPECTED_TOKEN`,`Unexpected ${i.type} token`),l=!1,u=!1}let S=e[e.length-1],ee=S?S.offset+S.source.length:i;return m&&r&&r.type!==`space`&&r.type!==`newline`&&r.type!==`comma`&&(r.type!==`scalar`||r.source!==``)&&a(r.offset,`MISSING_CHAR`,`Tags and anchors must be separated from the next token by white space`),h&&(l&&h.indent<=o||r?.type===`block-map`||r?.type===`block-seq`)&&a(h,`TAB_AS_INDENT`,`Tabs are not allowed as indentation`),{comma:y,found:b,spaceBefore:c,comment:d,hasNewline:p,anchor:g,tag:_,newlineAfterProp:v,end:ee,start:x??ee}}function fn(e){if(!e)return null;switch(e.type){case`alias`:case`scalar`:case`double-quoted-scalar`:case`single-quoted-scalar`:if(e.source.includes(`
`))return!0;if(e.end){for(let t of e.end)if(t.type===`newline`)return!0}return!1;case`flow-collection`:for(let t of e.items){for(let e of t.start)if(e.type===`newline`)return!0;if(t.sep){for(let e of t.sep)if(e.type===`newline`)return!0}if(fn(t.key)||fn(t.value))return!0}return!1;default:return!0}}function pn(e,t,n){if(t?.type===`flow-collection`){let r=t.end[0];r.indent===e&&(r.source===`]`||r.source===`}`)&&fn(t)&&n(r,`BAD_INDENT`,`Flow end indicator should be more indented than parent`,!0)}}function mn(e,t,n){let{uniqueKeys:r}=e.options;if(r===!1)return!1;let i=typeof r==`function`?r:(e,t)=>e===t||O(e)&&O(t)&&e.value===t.value;return t.some(e=>i(e.key,n))}var hn=`All mapping items must start at the same column`;function gn({composeNode:e,composeEmptyNode:t},n,r,i,a){let o=new((a?.nodeClass)??U)(n.schema);n.atRoot&&=!1;let s=r.offset,c=null;for(let a of r.items){let{start:l,key:u,sep:d,value:f}=a,p=dn(l,{indicator:`explicit-key-ind`,next:u??d?.[0],offset:s,onError:i,parentIndent:r.indent,startOnNewline:!0}),m=!p.found;if(m){if(u&&(u.type===`block-seq`?i(s,`BLOCK_AS_IMPLICIT_KEY`,`A block sequence may not be used as an implicit map key`):`indent`in u&&u.indent!==r.indent&&i(s,`BAD_INDENT`,hn)),!p.anchor&&!p.tag&&!d){c=p.end,p.comment&&(o.comment?o.comment+=`
`+p.comment:o.comment=p.comment);continue}(p.newlineAfterProp||fn(u))&&i(u??l[l.length-1],`MULTILINE_IMPLICIT_KEY`,`Implicit keys need to be on a single line`)}else p.found?.indent!==r.indent&&i(s,`BAD_INDENT`,hn);n.atKey=!0;let h=p.end,g=u?e(n,u,p,i):t(n,h,l,null,p,i);n.schema.compat&&pn(r.indent,u,i),n.atKey=!1,mn(n,o.items,g)&&i(h,`DUPLICATE_KEY`,`Map keys must be unique`);let _=dn(d??[],{indicator:`map-value-ind`,next:f,offset:g.range[2],onError:i,parentIndent:r.indent,startOnNewline:!u||u.type===`block-scalar`});if(s=_.end,_.found){m&&(f?.type===`block-map`&&!_.hasNewline&&i(s,`BLOCK_AS_IMPLICIT_KEY`,`Nested mappings are not allowed in compact mappings`),n.options.strict&&p.start<_.found.offset-1024&&i(g.range,`KEY_OVER_1024_CHARS`,`The : indicator must be at most 1024 chars after the start of an implicit block mapping key`));let c=f?e(n,f,_,i):t(n,s,d,null,_,i);n.schema.compat&&pn(r.indent,f,i),s=c.range[2];let l=new V(g,c);n.options.keepSourceTokens&&(l.srcToken=a),o.items.push(l)}else{m&&i(g.range,`MISSING_CHAR`,`Implicit map keys need to be followed by map values`),_.comment&&(g.comment?g.comment+=`
`+_.comment:g.comment=_.comment);let e=new V(g);n.options.keepSourceTokens&&(e.srcToken=a),o.items.push(e)}}return c&&c<s&&i(c,`IMPOSSIBLE`,`Map comment with trailing content`),o.range=[r.offset,s,c??s],o}function _n({composeNode:e,composeEmptyNode:t},n,r,i,a){let o=new((a?.nodeClass)??G)(n.schema);n.atRoot&&=!1,n.atKey&&=!1;let s=r.offset,c=null;for(let{start:a,value:l}of r.items){let u=dn(a,{indicator:`seq-item-ind`,next:l,offset:s,onError:i,parentIndent:r.indent,startOnNewline:!0});if(!u.found){if(u.anchor||u.tag||l)l?.type===`block-seq`?i(u.end,`BAD_INDENT`,`All sequence items must start at the same column`):i(s,`MISSING_CHAR`,`Sequence item without - indicator`);else{c=u.end,u.comment&&(o.comment=u.comment);continue}}let d=l?e(n,l,u,i):t(n,u.end,a,null,u,i);n.schema.compat&&pn(r.indent,l,i),s=d.range[2],o.items.push(d)}return o.range=[r.offset,s,c??s],o}function vn(e,t,n,r){let i=``;if(e){let a=!1,o=``;for(let s of e){let{source:e,type:c}=s;switch(c){case`space`:a=!0;break;case`comment`:{n&&!a&&r(s,`MISSING_CHAR`,`Comments must be separated from other tokens by white space characters`);let t=e.substring(1)||` `;i?i+=o+t:i=t,o=``;break}case`newline`:i&&(o+=e),a=!0;break;default:r(s,`UNEXPECTED_TOKEN`,`Unexpected ${c} at node end`)}t+=e.length}}return{comment:i,offset:t}}var yn=`Block collections are not allowed within flow collections`,bn=e=>e&&(e.type===`block-map`||e.type===`block-seq`);function xn({composeNode:e,composeEmptyNode:t},n,r,i,a){let o=r.start.source===`{`,s=o?`flow map`:`flow sequence`,c=new((a?.nodeClass)??(o?U:G))(n.schema);c.flow=!0;let l=n.atRoot;l&&(n.atRoot=!1),n.atKey&&=!1;let u=r.offset+r.start.source.length;for(let a=0;a<r.items.length;++a){let l=r.items[a],{start:d,key:f,sep:p,value:m}=l,h=dn(d,{flow:s,indicator:`explicit-key-ind`,next:f??p?.[0],offset:u,onError:i,parentIndent:r.indent,startOnNewline:!1});if(!h.found){if(!h.anchor&&!h.tag&&!p&&!m){a===0&&h.comma?i(h.comma,`UNEXPECTED_TOKEN`,`Unexpected , in ${s}`):a<r.items.length-1&&i(h.start,`UNEXPECTED_TOKEN`,`Unexpected empty item in ${s}`),h.comment&&(c.comment?c.comment+=`
`+h.comment:c.comment=h.comment),u=h.end;continue}!o&&n.options.strict&&fn(f)&&i(f,`MULTILINE_IMPLICIT_KEY`,`Implicit keys of flow sequence pairs need to be on a single line`)}if(a===0)h.comma&&i(h.comma,`UNEXPECTED_TOKEN`,`Unexpected , in ${s}`);else if(h.comma||i(h.start,`MISSING_CHAR`,`Missing , between ${s} items`),h.comment){let e=``;loop:for(let t of d)switch(t.type){case`comma`:case`space`:break;case`comment`:e=t.source.substring(1);break loop;default:break loop}if(e){let t=c.items[c.items.length-1];D(t)&&(t=t.value??t.key),t.comment?t.comment+=`
`+e:t.comment=e,h.comment=h.comment.substring(e.length+1)}}if(!o&&!p&&!h.found){let r=m?e(n,m,h,i):t(n,h.end,p,null,h,i);c.items.push(r),u=r.range[2],bn(m)&&i(r.range,`BLOCK_IN_FLOW`,yn)}else{n.atKey=!0;let a=h.end,g=f?e(n,f,h,i):t(n,a,d,null,h,i);bn(f)&&i(g.range,`BLOCK_IN_FLOW`,yn),n.atKey=!1;let _=dn(p??[],{flow:s,indicator:`map-value-ind`,next:m,offset:g.range[2],onError:i,parentIndent:r.indent,startOnNewline:!1});if(_.found){if(!o&&!h.found&&n.options.strict){if(p)for(let e of p){if(e===_.found)break;if(e.type===`newline`){i(e,`MULTILINE_IMPLICIT_KEY`,`Implicit keys of flow sequence pairs need to be on a single line`);break}}h.start<_.found.offset-1024&&i(_.found,`KEY_OVER_1024_CHARS`,`The : indicator must be at most 1024 chars after the start of an implicit flow sequence key`)}}else m&&(`source`in m&&m.source?.[0]===`:`?i(m,`MISSING_CHAR`,`Missing space after : in ${s}`):i(_.start,`MISSING_CHAR`,`Missing , or : between ${s} items`));let v=m?e(n,m,_,i):_.found?t(n,_.end,p,null,_,i):null;v?bn(m)&&i(v.range,`BLOCK_IN_FLOW`,yn):_.comment&&(g.comment?g.comment+=`
`+_.comment:g.comment=_.comment);let y=new V(g,v);if(n.options.keepSourceTokens&&(y.srcToken=l),o){let e=c;mn(n,e.items,g)&&i(a,`DUPLICATE_KEY`,`Map keys must be unique`),e.items.push(y)}else{let e=new U(n.schema);e.flow=!0,e.items.push(y);let t=(v??g).range;e.range=[g.range[0],t[1],t[2]],c.items.push(e)}u=v?v.range[2]:_.end}}let d=o?`}`:`]`,[f,...p]=r.end,m=u;if(f?.source===d)m=f.offset+f.source.length;else{let e=s[0].toUpperCase()+s.substring(1),t=l?`${e} must end with a ${d}`:`${e} in block collection must be sufficiently indented and end with a ${d}`;i(u,l?`MISSING_CHAR`:`BAD_INDENT`,t),f&&f.source.length!==1&&p.unshift(f)}if(p.length>0){let e=vn(p,m,n.options.strict,i);e.comment&&(c.comment?c.comment+=`
`+e.comment:c.comment=e.comment),c.range=[r.offset,m,e.offset]}else c.range=[r.offset,m,m];return c}function Sn(e,t,n,r,i,a){let o=n.type===`block-map`?gn(e,t,n,r,a):n.type===`block-seq`?_n(e,t,n,r,a):xn(e,t,n,r,a),s=o.constructor;return i===`!`||i===s.tagName?(o.tag=s.tagName,o):(i&&(o.tag=i),o)}function Cn(e,t,n,r,i){let a=r.tag,o=a?t.directives.tagName(a.source,e=>i(a,`TAG_RESOLVE_FAILED`,e)):null;if(n.type===`block-seq`){let{anchor:e,newlineAfterProp:t}=r,n=e&&a?e.offset>a.offset?e:a:e??a;n&&(!t||t.offset<n.offset)&&i(n,`MISSING_CHAR`,`Missing newline after block sequence props`)}let s=n.type===`block-map`?`map`:n.type===`block-seq`?`seq`:n.start.source===`{`?`map`:`seq`;if(!a||!o||o===`!`||o===U.tagName&&s===`map`||o===G.tagName&&s===`seq`)return Sn(e,t,n,i,o);let c=t.schema.tags.find(e=>e.tag===o&&e.collection===s);if(!c){let r=t.schema.knownTags[o];if(r?.collection===s)t.schema.tags.push(Object.assign({},r,{default:!1})),c=r;else return r?i(a,`BAD_COLLECTION_TYPE`,`${r.tag} used for ${s} collection, but expects ${r.collection??`scalar`}`,!0):i(a,`TAG_RESOLVE_FAILED`,`Unresolved tag: ${o}`,!0),Sn(e,t,n,i,o)}let l=Sn(e,t,n,i,o,c),u=c.resolve?.(l,e=>i(a,`TAG_RESOLVE_FAILED`,e),t.options)??l,d=j(u)?u:new L(u);return d.range=l.range,d.tag=o,c?.format&&(d.format=c.format),d}function wn(e,t,n){let r=t.offset,i=Tn(t,e.options.strict,n);if(!i)return{value:``,type:null,comment:``,range:[r,r,r]};let a=i.mode===`>`?L.BLOCK_FOLDED:L.BLOCK_LITERAL,o=t.source?En(t.source):[],s=o.length;for(let e=o.length-1;e>=0;--e){let t=o[e][1];if(t===``||t===`\r`)s=e;else break}if(s===0){let e=i.chomp===`+`&&o.length>0?`
`.repeat(Math.max(1,o.length-1)):``,n=r+i.length;return t.source&&(n+=t.source.length),{value:e,type:a,comment:i.comment,range:[r,n,n]}}let c=t.indent+i.indent,l=t.offset+i.length,u=0;for(let t=0;t<s;++t){let[r,a]=o[t];if(a===``||a===`\r`)i.indent===0&&r.length>c&&(c=r.length);else{r.length<c&&n(l+r.length,`MISSING_CHAR`,`Block scalars with more-indented leading empty lines must use an explicit indentation indicator`),i.indent===0&&(c=r.length),u=t,c===0&&!e.atRoot&&n(l,`BAD_INDENT`,`Block scalar values in collections must be indented`);break}l+=r.length+a.length+1}for(let e=o.length-1;e>=s;--e)o[e][0].length>c&&(s=e+1);let d=``,f=``,p=!1;for(let e=0;e<u;++e)d+=o[e][0].slice(c)+`
`;for(let e=u;e<s;++e){let[t,r]=o[e];l+=t.length+r.length+1;let s=r[r.length-1]===`\r`;if(s&&(r=r.slice(0,-1)),r&&t.length<c){let e=`Block scalar lines must not be less indented than their ${i.indent?`explicit indentation indicator`:`first line`}`;n(l-r.length-(s?2:1),`BAD_INDENT`,e),t=``}a===L.BLOCK_LITERAL?(d+=f+t.slice(c)+r,f=`
`):t.length>c||r[0]===`	`?(f===` `?f=`
`:!p&&f===`
`&&(f=`

`),d+=f+t.slice(c)+r,f=`
`,p=!0):r===``?f===`
`?d+=`
`:f=`
`:(d+=f+r,f=` `,p=!1)}switch(i.chomp){case`-`:break;case`+`:for(let e=s;e<o.length;++e)d+=`
`+o[e][0].slice(c);d[d.length-1]!==`
`&&(d+=`
`);break;default:d+=`
`}let m=r+i.length+t.source.length;return{value:d,type:a,comment:i.comment,range:[r,m,m]}}function Tn({offset:e,props:t},n,r){if(t[0].type!==`block-scalar-header`)return r(t[0],`IMPOSSIBLE`,`Block scalar header not found`),null;let{source:i}=t[0],a=i[0],o=0,s=``,c=-1;for(let t=1;t<i.length;++t){let n=i[t];if(!s&&(n===`-`||n===`+`))s=n;else{let r=Number(n);!o&&r?o=r:c===-1&&(c=e+t)}}c!==-1&&r(c,`UNEXPECTED_TOKEN`,`Block scalar header includes extra characters: ${i}`);let l=!1,u=``,d=i.length;for(let e=1;e<t.length;++e){let i=t[e];switch(i.type){case`space`:l=!0;case`newline`:d+=i.source.length;break;case`comment`:n&&!l&&r(i,`MISSING_CHAR`,`Comments must be separated from other tokens by white space characters`),d+=i.source.length,u=i.source.substring(1);break;case`error`:r(i,`UNEXPECTED_TOKEN`,i.message),d+=i.source.length;break;default:{r(i,`UNEXPECTED_TOKEN`,`Unexpected token in block scalar header: ${i.type}`);let e=i.source;e&&typeof e==`string`&&(d+=e.length)}}}return{mode:a,indent:o,chomp:s,comment:u,length:d}}function En(e){let t=e.split(/\n( *)/),n=t[0],r=n.match(/^( *)/),i=[r?.[1]?[r[1],n.slice(r[1].length)]:[``,n]];for(let e=1;e<t.length;e+=2)i.push([t[e],t[e+1]]);return i}function Dn(e,t,n){let{offset:r,type:i,source:a,end:o}=e,s,c,l=(e,t,i)=>n(r+e,t,i);switch(i){case`scalar`:s=L.PLAIN,c=On(a,l);break;case`single-quoted-scalar`:s=L.QUOTE_SINGLE,c=kn(a,l);break;case`double-quoted-scalar`:s=L.QUOTE_DOUBLE,c=jn(a,l);break;default:return n(e,`UNEXPECTED_TOKEN`,`Expected a flow scalar value, but found: ${i}`),{value:``,type:null,comment:``,range:[r,r+a.length,r+a.length]}}let u=r+a.length,d=vn(o,u,t,n);return{value:c,type:s,comment:d.comment,range:[r,u,d.offset]}}function On(e,t){let n=``;switch(e[0]){case`	`:n=`a tab character`;break;case`,`:n=`flow indicator character ,`;break;case`%`:n=`directive indicator character %`;break;case`|`:case`>`:n=`block scalar indicator ${e[0]}`;break;case`@`:case"`":n=`reserved character ${e[0]}`}return n&&t(0,`BAD_SCALAR_START`,`Plain value cannot start with ${n}`),An(e)}function kn(e,t){return(e[e.length-1]!==`'`||e.length===1)&&t(e.length,`MISSING_CHAR`,`Missing closing 'quote`),An(e.slice(1,-1)).replace(/''/g,`'`)}function An(e){let t=/(.*?)\r?\n/sy,n=t.exec(e);if(!n)return e;let r,i;try{r=RegExp(`(?<![ 	])[ 	]+$`),i=RegExp(`^[ 	]+|(?<![ 	])[ 	]+$`,`g`)}catch{r=/[ \t]+$/,i=/^[ \t]+|[ \t]+$/g}let a=n[1].replace(r,``),o=` `,s=t.lastIndex;for(;n=t.exec(e);){let e=n[1].replace(i,``);e===``?o===`
`?a+=o:o=`
`:(a+=o+e,o=` `),s=t.lastIndex}let c=/[ \t]*(.*)/sy;return c.lastIndex=s,n=c.exec(e),a+o+(n?.[1]??``)}function jn(e,t){let n=``;for(let r=1;r<e.length-1;++r){let i=e[r];if(i!==`\r`||e[r+1]!==`
`){if(i===`
`){let{fold:t,offset:i}=Mn(e,r);n+=t,r=i}else if(i===`\\`){let i=e[++r],a=Nn[i];if(a)n+=a;else if(i===`
`)for(i=e[r+1];i===` `||i===`	`;)i=e[++r+1];else if(i===`\r`&&e[r+1]===`
`)for(i=e[++r+1];i===` `||i===`	`;)i=e[++r+1];else if(i===`x`||i===`u`||i===`U`){let a=i===`x`?2:i===`u`?4:8;n+=Pn(e,r+1,a,t),r+=a}else{let i=e.substr(r-1,2);t(r-1,`BAD_DQ_ESCAPE`,`Invalid escape sequence ${i}`),n+=i}}else if(i===` `||i===`	`){let t=r,a=e[r+1];for(;a===` `||a===`	`;)a=e[++r+1];a!==`
`&&(a!==`\r`||e[r+2]!==`
`)&&(n+=r>t?e.slice(t,r+1):i)}else n+=i}}return(e[e.length-1]!==`"`||e.length===1)&&t(e.length,`MISSING_CHAR`,`Missing closing "quote`),n}function Mn(e,t){let n=``,r=e[t+1];for(;(r===` `||r===`	`||r===`
`||r===`\r`)&&(r!==`\r`||e[t+2]===`
`);)r===`
`&&(n+=`
`),t+=1,r=e[t+1];return n||=` `,{fold:n,offset:t}}var Nn={0:`\0`,a:`\x07`,b:`\b`,e:`\x1B`,f:`\f`,n:`
`,r:`\r`,t:`	`,v:`\v`,N:``,_:`\xA0`,L:`\u2028`,P:`\u2029`," ":` `,'"':`"`,"/":`/`,"\\":`\\`,"	":`	`};function Pn(e,t,n,r){let i=e.substr(t,n),a=i.length===n&&/^[0-9a-fA-F]+$/.test(i)?parseInt(i,16):NaN;try{return String.fromCodePoint(a)}catch{let i=e.substr(t-2,n+2);return r(t-2,`BAD_DQ_ESCAPE`,`Invalid escape sequence ${i}`),i}}function Fn(e,t,n,r){let{value:i,type:a,comment:o,range:s}=t.type===`block-scalar`?wn(e,t,r):Dn(t,e.options.strict,r),c=n?e.directives.tagName(n.source,e=>r(n,`TAG_RESOLVE_FAILED`,e)):null,l;l=e.options.stringKeys&&e.atKey?e.schema[C]:c?In(e.schema,i,c,n,r):t.type===`scalar`?Ln(e,i,t,r):e.schema[C];let u;try{let a=l.resolve(i,e=>r(n??t,`TAG_RESOLVE_FAILED`,e),e.options);u=O(a)?a:new L(a)}catch(e){let a=e instanceof Error?e.message:String(e);r(n??t,`TAG_RESOLVE_FAILED`,a),u=new L(i)}return u.range=s,u.source=i,a&&(u.type=a),c&&(u.tag=c),l.format&&(u.format=l.format),o&&(u.comment=o),u}function In(e,t,n,r,i){if(n===`!`)return e[C];let a=[];for(let t of e.tags)if(!t.collection&&t.tag===n){if(t.default&&t.test)a.push(t);else return t}for(let e of a)if(e.test?.test(t))return e;let o=e.knownTags[n];return o&&!o.collection?(e.tags.push(Object.assign({},o,{default:!1,test:void 0})),o):(i(r,`TAG_RESOLVE_FAILED`,`Unresolved tag: ${n}`,n!==`tag:yaml.org,2002:str`),e[C])}function Ln({atKey:e,directives:t,schema:n},r,i,a){let o=n.tags.find(t=>(t.default===!0||e&&t.default===`key`)&&t.test?.test(r))||n[C];if(n.compat){let e=n.compat.find(e=>e.default&&e.test?.test(r))??n[C];o.tag!==e.tag&&a(i,`TAG_RESOLVE_FAILED`,`Value may be parsed as either ${t.tagString(o.tag)} or ${t.tagString(e.tag)}`,!0)}return o}function Rn(e,t,n){if(t){n??=t.length;for(let r=n-1;r>=0;--r){let n=t[r];switch(n.type){case`space`:case`comment`:case`newline`:e-=n.source.length;continue}for(n=t[++r];n?.type===`space`;)e+=n.source.length,n=t[++r];break}}return e}var zn={composeNode:Bn,composeEmptyNode:Vn};function Bn(e,t,n,r){let i=e.atKey,{spaceBefore:a,comment:o,anchor:s,tag:c}=n,l,u=!0;switch(t.type){case`alias`:l=Hn(e,t,r),(s||c)&&r(t,`ALIAS_PROPS`,`An alias node must not specify any properties`);break;case`scalar`:case`single-quoted-scalar`:case`double-quoted-scalar`:case`block-scalar`:l=Fn(e,t,c,r),s&&(l.anchor=s.source.substring(1));break;case`block-map`:case`block-seq`:case`flow-collection`:try{l=Cn(zn,e,t,n,r),s&&(l.anchor=s.source.substring(1))}catch(e){r(t,`RESOURCE_EXHAUSTION`,e instanceof Error?e.message:String(e))}break;default:r(t,`UNEXPECTED_TOKEN`,t.type===`error`?t.message:`Unsupported token (type: ${t.type})`),u=!1}return l??=Vn(e,t.offset,void 0,null,n,r),s&&l.anchor===``&&r(s,`BAD_ALIAS`,`Anchor cannot be an empty string`),i&&e.options.stringKeys&&(!O(l)||typeof l.value!=`string`||l.tag&&l.tag!==`tag:yaml.org,2002:str`)&&r(c??t,`NON_STRING_KEY`,`With stringKeys, all keys must be strings`),a&&(l.spaceBefore=!0),o&&(t.type===`scalar`&&t.source===``?l.comment=o:l.commentBefore=o),e.options.keepSourceTokens&&u&&(l.srcToken=t),l}function Vn(e,t,n,r,{spaceBefore:i,comment:a,anchor:o,tag:s,end:c},l){let u=Fn(e,{type:`scalar`,offset:Rn(t,n,r),indent:-1,source:``},s,l);return o&&(u.anchor=o.source.substring(1),u.anchor===``&&l(o,`BAD_ALIAS`,`Anchor cannot be an empty string`)),i&&(u.spaceBefore=!0),a&&(u.comment=a,u.range[2]=c),u}function Hn({options:e},{offset:t,source:n,end:r},i){let a=new _e(n.substring(1));a.source===``&&i(t,`BAD_ALIAS`,`Alias cannot be an empty string`),a.source.endsWith(`:`)&&i(t+n.length-1,`BAD_ALIAS`,`Alias ending in : is ambiguous`,!0);let o=t+n.length,s=vn(r,o,e.strict,i);return a.range=[t,o,s.offset],s.comment&&(a.comment=s.comment),a}function Un(e,t,{offset:n,start:r,value:i,end:a},o){let s=new an(void 0,Object.assign({_directives:t},e)),c={atKey:!1,atRoot:!0,directives:s.directives,options:s.options,schema:s.schema},l=dn(r,{indicator:`doc-start`,next:i??a?.[0],offset:n,onError:o,parentIndent:0,startOnNewline:!0});l.found&&(s.directives.docStart=!0,i&&(i.type===`block-map`||i.type===`block-seq`)&&!l.hasNewline&&o(l.end,`MISSING_CHAR`,`Block collection cannot start on same line with directives-end marker`)),s.contents=i?Bn(c,i,l,o):Vn(c,l.end,r,null,l,o);let u=s.contents.range[2],d=vn(a,u,!1,o);return d.comment&&(s.comment=d.comment),s.range=[n,u,d.offset],s}function Wn(e){if(typeof e==`number`)return[e,e+1];if(Array.isArray(e))return e.length===2?e:[e[0],e[1]];let{offset:t,source:n}=e;return[t,t+(typeof n==`string`?n.length:1)]}function Gn(e){let t=``,n=!1,r=!1;for(let i=0;i<e.length;++i){let a=e[i];switch(a[0]){case`#`:t+=(t===``?``:r?`

`:`
`)+(a.substring(1)||` `),n=!0,r=!1;break;case`%`:e[i+1]?.[0]!==`#`&&(i+=1),n=!1;break;default:n||(r=!0),n=!1}}return{comment:t,afterEmptyLine:r}}var Kn=class{constructor(e={}){this.doc=null,this.atDirectives=!1,this.prelude=[],this.errors=[],this.warnings=[],this.onError=(e,t,n,r)=>{let i=Wn(e);r?this.warnings.push(new ln(i,t,n)):this.errors.push(new cn(i,t,n))},this.directives=new P({version:e.version||`1.2`}),this.options=e}decorate(e,t){let{comment:n,afterEmptyLine:r}=Gn(this.prelude);if(n){let i=e.contents;if(t)e.comment=e.comment?`${e.comment}\n${n}`:n;else if(r||e.directives.docStart||!i)e.commentBefore=n;else if(A(i)&&!i.flow&&i.items.length>0){let e=i.items[0];D(e)&&(e=e.key);let t=e.commentBefore;e.commentBefore=t?`${n}\n${t}`:n}else{let e=i.commentBefore;i.commentBefore=e?`${n}\n${e}`:n}}if(t){for(let t=0;t<this.errors.length;++t)e.errors.push(this.errors[t]);for(let t=0;t<this.warnings.length;++t)e.warnings.push(this.warnings[t])}else e.errors=this.errors,e.warnings=this.warnings;this.prelude=[],this.errors=[],this.warnings=[]}streamInfo(){return{comment:Gn(this.prelude).comment,directives:this.directives,errors:this.errors,warnings:this.warnings}}*compose(e,t=!1,n=-1){for(let t of e)yield*this.next(t);yield*this.end(t,n)}*next(e){switch(e.type){case`directive`:this.directives.add(e.source,(t,n,r)=>{let i=Wn(e);i[0]+=t,this.onError(i,`BAD_DIRECTIVE`,n,r)}),this.prelude.push(e.source),this.atDirectives=!0;break;case`document`:{let t=Un(this.options,this.directives,e,this.onError);this.atDirectives&&!t.directives.docStart&&this.onError(e,`MISSING_CHAR`,`Missing directives-end/doc-start indicator line`),this.decorate(t,!1),this.doc&&(yield this.doc),this.doc=t,this.atDirectives=!1;break}case`byte-order-mark`:case`space`:break;case`comment`:case`newline`:this.prelude.push(e.source);break;case`error`:{let t=e.source?`${e.message}: ${JSON.stringify(e.source)}`:e.message,n=new cn(Wn(e),`UNEXPECTED_TOKEN`,t);this.atDirectives||!this.doc?this.errors.push(n):this.doc.errors.push(n);break}case`doc-end`:{if(!this.doc){this.errors.push(new cn(Wn(e),`UNEXPECTED_TOKEN`,`Unexpected doc-end without preceding document`));break}this.doc.directives.docEnd=!0;let t=vn(e.end,e.offset+e.source.length,this.doc.options.strict,this.onError);if(this.decorate(this.doc,!0),t.comment){let e=this.doc.comment;this.doc.comment=e?`${e}\n${t.comment}`:t.comment}this.doc.range[2]=t.offset;break}default:this.errors.push(new cn(Wn(e),`UNEXPECTED_TOKEN`,`Unsupported token ${e.type}`))}}*end(e=!1,t=-1){if(this.doc)this.decorate(this.doc,!0),yield this.doc,this.doc=null;else if(e){let e=new an(void 0,Object.assign({_directives:this.directives},this.options));this.atDirectives&&this.onError(t,`MISSING_CHAR`,`Missing directives-end indicator line`),e.range=[0,t,t],this.decorate(e,!1),yield e}}},qn=Symbol(`break visit`),Jn=Symbol(`skip children`),Yn=Symbol(`remove item`);function J(e,t){`type`in e&&e.type===`document`&&(e={start:e.start,value:e.value}),Xn(Object.freeze([]),e,t)}J.BREAK=qn,J.SKIP=Jn,J.REMOVE=Yn,J.itemAtPath=(e,t)=>{let n=e;for(let[e,r]of t){let t=n?.[e];if(t&&`items`in t)n=t.items[r];else return}return n},J.parentCollection=(e,t)=>{let n=J.itemAtPath(e,t.slice(0,-1)),r=t[t.length-1][0],i=n?.[r];if(i&&`items`in i)return i;throw Error(`Parent collection not found`)};function Xn(e,t,n){let r=n(t,e);if(typeof r==`symbol`)return r;for(let i of[`key`,`value`]){let a=t[i];if(a&&`items`in a){for(let t=0;t<a.items.length;++t){let r=Xn(Object.freeze(e.concat([[i,t]])),a.items[t],n);if(typeof r==`number`)t=r-1;else if(r===qn)return qn;else r===Yn&&(a.items.splice(t,1),--t)}typeof r==`function`&&i===`key`&&(r=r(t,e))}}return typeof r==`function`?r(t,e):r}function Zn(e){switch(e){case`﻿`:return`byte-order-mark`;case``:return`doc-mode`;case``:return`flow-error-end`;case``:return`scalar`;case`---`:return`doc-start`;case`...`:return`doc-end`;case``:case`
`:case`\r
`:return`newline`;case`-`:return`seq-item-ind`;case`?`:return`explicit-key-ind`;case`:`:return`map-value-ind`;case`{`:return`flow-map-start`;case`}`:return`flow-map-end`;case`[`:return`flow-seq-start`;case`]`:return`flow-seq-end`;case`,`:return`comma`}switch(e[0]){case` `:case`	`:return`space`;case`#`:return`comment`;case`%`:return`directive-line`;case`*`:return`alias`;case`&`:return`anchor`;case`!`:return`tag`;case`'`:return`single-quoted-scalar`;case`"`:return`double-quoted-scalar`;case`|`:case`>`:return`block-scalar-header`}return null}function Y(e){switch(e){case void 0:case` `:case`
`:case`\r`:case`	`:return!0;default:return!1}}var Qn=new Set(`0123456789ABCDEFabcdef`),$n=new Set(`0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-#;/?:@&=+$_.!~*'()`),er=new Set(`,[]{}`),tr=new Set(` ,[]{}
\r	`),nr=e=>!e||tr.has(e),rr=class{constructor(){this.atEnd=!1,this.blockScalarIndent=-1,this.blockScalarKeep=!1,this.buffer=``,this.flowKey=!1,this.flowLevel=0,this.indentNext=0,this.indentValue=0,this.lineEndPos=null,this.next=null,this.pos=0}*lex(e,t=!1){if(e){if(typeof e!=`string`)throw TypeError(`source is not a string`);this.buffer=this.buffer?this.buffer+e:e,this.lineEndPos=null}this.atEnd=!t;let n=this.next??`stream`;for(;n&&(t||this.hasChars(1));)n=yield*this.parseNext(n)}atLineEnd(){let e=this.pos,t=this.buffer[e];for(;t===` `||t===`	`;)t=this.buffer[++e];return!t||t===`#`||t===`
`||t===`\r`&&this.buffer[e+1]===`
`}charAt(e){return this.buffer[this.pos+e]}continueScalar(e){let t=this.buffer[e];if(this.indentNext>0){let n=0;for(;t===` `;)t=this.buffer[++n+e];if(t===`\r`){let t=this.buffer[n+e+1];if(t===`
`||!t&&!this.atEnd)return e+n+1}return t===`
`||n>=this.indentNext||!t&&!this.atEnd?e+n:-1}if(t===`-`||t===`.`){let t=this.buffer.substr(e,3);if((t===`---`||t===`...`)&&Y(this.buffer[e+3]))return-1}return e}getLine(){let e=this.lineEndPos;return(typeof e!=`number`||e!==-1&&e<this.pos)&&(e=this.buffer.indexOf(`
`,this.pos),this.lineEndPos=e),e===-1?this.atEnd?this.buffer.substring(this.pos):null:(this.buffer[e-1]===`\r`&&--e,this.buffer.substring(this.pos,e))}hasChars(e){return this.pos+e<=this.buffer.length}setNext(e){return this.buffer=this.buffer.substring(this.pos),this.pos=0,this.lineEndPos=null,this.next=e,null}peek(e){return this.buffer.substr(this.pos,e)}*parseNext(e){switch(e){case`stream`:return yield*this.parseStream();case`line-start`:return yield*this.parseLineStart();case`block-start`:return yield*this.parseBlockStart();case`doc`:return yield*this.parseDocument();case`flow`:return yield*this.parseFlowCollection();case`quoted-scalar`:return yield*this.parseQuotedScalar();case`block-scalar`:return yield*this.parseBlockScalar();case`plain-scalar`:return yield*this.parsePlainScalar()}}*parseStream(){let e=this.getLine();if(e===null)return this.setNext(`stream`);if(e[0]===`﻿`&&(yield*this.pushCount(1),e=e.substring(1)),e[0]===`%`){let t=e.length,n=e.indexOf(`#`);for(;n!==-1;){let r=e[n-1];if(r===` `||r===`	`){t=n-1;break}n=e.indexOf(`#`,n+1)}for(;;){let n=e[t-1];if(n===` `||n===`	`)--t;else break}let r=(yield*this.pushCount(t))+(yield*this.pushSpaces(!0));return yield*this.pushCount(e.length-r),this.pushNewline(),`stream`}if(this.atLineEnd()){let t=yield*this.pushSpaces(!0);return yield*this.pushCount(e.length-t),yield*this.pushNewline(),`stream`}return yield``,yield*this.parseLineStart()}*parseLineStart(){let e=this.charAt(0);if(!e&&!this.atEnd)return this.setNext(`line-start`);if(e===`-`||e===`.`){if(!this.atEnd&&!this.hasChars(4))return this.setNext(`line-start`);let e=this.peek(3);if((e===`---`||e===`...`)&&Y(this.charAt(3)))return yield*this.pushCount(3),this.indentValue=0,this.indentNext=0,e===`---`?`doc`:`stream`}return this.indentValue=yield*this.pushSpaces(!1),this.indentNext>this.indentValue&&!Y(this.charAt(1))&&(this.indentNext=this.indentValue),yield*this.parseBlockStart()}*parseBlockStart(){let[e,t]=this.peek(2);if(!t&&!this.atEnd)return this.setNext(`block-start`);if((e===`-`||e===`?`||e===`:`)&&Y(t)){let e=(yield*this.pushCount(1))+(yield*this.pushSpaces(!0));return this.indentNext=this.indentValue+1,this.indentValue+=e,`block-start`}return`doc`}*parseDocument(){yield*this.pushSpaces(!0);let e=this.getLine();if(e===null)return this.setNext(`doc`);let t=yield*this.pushIndicators();switch(e[t]){case`#`:yield*this.pushCount(e.length-t);case void 0:return yield*this.pushNewline(),yield*this.parseLineStart();case`{`:case`[`:return yield*this.pushCount(1),this.flowKey=!1,this.flowLevel=1,`flow`;case`}`:case`]`:return yield*this.pushCount(1),`doc`;case`*`:return yield*this.pushUntil(nr),`doc`;case`"`:case`'`:return yield*this.parseQuotedScalar();case`|`:case`>`:return t+=yield*this.parseBlockScalarHeader(),t+=yield*this.pushSpaces(!0),yield*this.pushCount(e.length-t),yield*this.pushNewline(),yield*this.parseBlockScalar();default:return yield*this.parsePlainScalar()}}*parseFlowCollection(){let e,t,n=-1;do e=yield*this.pushNewline(),e>0?(t=yield*this.pushSpaces(!1),this.indentValue=n=t):t=0,t+=yield*this.pushSpaces(!0);while(e+t>0);let r=this.getLine();if(r===null)return this.setNext(`flow`);if((n!==-1&&n<this.indentNext&&r[0]!==`#`||n===0&&(r.startsWith(`---`)||r.startsWith(`...`))&&Y(r[3]))&&(n!==this.indentNext-1||this.flowLevel!==1||r[0]!==`]`&&r[0]!==`}`))return this.flowLevel=0,yield``,yield*this.parseLineStart();let i=0;for(;r[i]===`,`;)i+=yield*this.pushCount(1),i+=yield*this.pushSpaces(!0),this.flowKey=!1;switch(i+=yield*this.pushIndicators(),r[i]){case void 0:return`flow`;case`#`:return yield*this.pushCount(r.length-i),`flow`;case`{`:case`[`:return yield*this.pushCount(1),this.flowKey=!1,this.flowLevel+=1,`flow`;case`}`:case`]`:return yield*this.pushCount(1),this.flowKey=!0,--this.flowLevel,this.flowLevel?`flow`:`doc`;case`*`:return yield*this.pushUntil(nr),`flow`;case`"`:case`'`:return this.flowKey=!0,yield*this.parseQuotedScalar();case`:`:{let e=this.charAt(1);if(this.flowKey||Y(e)||e===`,`)return this.flowKey=!1,yield*this.pushCount(1),yield*this.pushSpaces(!0),`flow`}default:return this.flowKey=!1,yield*this.parsePlainScalar()}}*parseQuotedScalar(){let e=this.charAt(0),t=this.buffer.indexOf(e,this.pos+1);if(e===`'`)for(;t!==-1&&this.buffer[t+1]===`'`;)t=this.buffer.indexOf(`'`,t+2);else for(;t!==-1;){let e=0;for(;this.buffer[t-1-e]===`\\`;)e+=1;if(e%2==0)break;t=this.buffer.indexOf(`"`,t+1)}let n=this.buffer.substring(0,t),r=n.indexOf(`
`,this.pos);if(r!==-1){for(;r!==-1;){let e=this.continueScalar(r+1);if(e===-1)break;r=n.indexOf(`
`,e)}r!==-1&&(t=r-(n[r-1]===`\r`?2:1))}if(t===-1){if(!this.atEnd)return this.setNext(`quoted-scalar`);t=this.buffer.length}return yield*this.pushToIndex(t+1,!1),this.flowLevel?`flow`:`doc`}*parseBlockScalarHeader(){this.blockScalarIndent=-1,this.blockScalarKeep=!1;let e=this.pos;for(;;){let t=this.buffer[++e];if(t===`+`)this.blockScalarKeep=!0;else if(t>`0`&&t<=`9`)this.blockScalarIndent=Number(t)-1;else if(t!==`-`)break}return yield*this.pushUntil(e=>Y(e)||e===`#`)}*parseBlockScalar(){let e=this.pos-1,t=0,n;loop:for(let r=this.pos;n=this.buffer[r];++r)switch(n){case` `:t+=1;break;case`
`:e=r,t=0;break;case`\r`:{let e=this.buffer[r+1];if(!e&&!this.atEnd)return this.setNext(`block-scalar`);if(e===`
`)break}default:break loop}if(!n&&!this.atEnd)return this.setNext(`block-scalar`);if(t>=this.indentNext){this.indentNext=this.blockScalarIndent===-1?t:this.blockScalarIndent+(this.indentNext===0?1:this.indentNext);do{let t=this.continueScalar(e+1);if(t===-1)break;e=this.buffer.indexOf(`
`,t)}while(e!==-1);if(e===-1){if(!this.atEnd)return this.setNext(`block-scalar`);e=this.buffer.length}}let r=e+1;for(n=this.buffer[r];n===` `;)n=this.buffer[++r];if(n===`	`){for(;n===`	`||n===` `||n===`\r`||n===`
`;)n=this.buffer[++r];e=r-1}else if(!this.blockScalarKeep)do{let n=e-1,r=this.buffer[n];r===`\r`&&(r=this.buffer[--n]);let i=n;for(;r===` `;)r=this.buffer[--n];if(r===`
`&&n>=this.pos&&n+1+t>i)e=n;else break}while(1);return yield``,yield*this.pushToIndex(e+1,!0),yield*this.parseLineStart()}*parsePlainScalar(){let e=this.flowLevel>0,t=this.pos-1,n=this.pos-1,r;for(;r=this.buffer[++n];)if(r===`:`){let r=this.buffer[n+1];if(Y(r)||e&&er.has(r))break;t=n}else if(Y(r)){let i=this.buffer[n+1];if(r===`\r`&&(i===`
`?(n+=1,r=`
`,i=this.buffer[n+1]):t=n),i===`#`||e&&er.has(i))break;if(r===`
`){let e=this.continueScalar(n+1);if(e===-1)break;n=Math.max(n,e-2)}}else{if(e&&er.has(r))break;t=n}return!r&&!this.atEnd?this.setNext(`plain-scalar`):(yield``,yield*this.pushToIndex(t+1,!0),e?`flow`:`doc`)}*pushCount(e){return e>0?(yield this.buffer.substr(this.pos,e),this.pos+=e,e):0}*pushToIndex(e,t){let n=this.buffer.slice(this.pos,e);return n?(yield n,this.pos+=n.length,n.length):(t&&(yield``),0)}*pushIndicators(){let e=0;loop:for(;;){switch(this.charAt(0)){case`!`:e+=yield*this.pushTag(),e+=yield*this.pushSpaces(!0);continue loop;case`&`:e+=yield*this.pushUntil(nr),e+=yield*this.pushSpaces(!0);continue loop;case`-`:case`?`:case`:`:{let t=this.flowLevel>0,n=this.charAt(1);if(Y(n)||t&&er.has(n)){t?this.flowKey&&=!1:this.indentNext=this.indentValue+1,e+=yield*this.pushCount(1),e+=yield*this.pushSpaces(!0);continue loop}}}break loop}return e}*pushTag(){if(this.charAt(1)===`<`){let e=this.pos+2,t=this.buffer[e];for(;!Y(t)&&t!==`>`;)t=this.buffer[++e];return yield*this.pushToIndex(t===`>`?e+1:e,!1)}{let e=this.pos+1,t=this.buffer[e];for(;t;)if($n.has(t))t=this.buffer[++e];else if(t===`%`&&Qn.has(this.buffer[e+1])&&Qn.has(this.buffer[e+2]))t=this.buffer[e+=3];else break;return yield*this.pushToIndex(e,!1)}}*pushNewline(){let e=this.buffer[this.pos];return e===`
`?yield*this.pushCount(1):e===`\r`&&this.charAt(1)===`
`?yield*this.pushCount(2):0}*pushSpaces(e){let t=this.pos-1,n;do n=this.buffer[++t];while(n===` `||e&&n===`	`);let r=t-this.pos;return r>0&&(yield this.buffer.substr(this.pos,r),this.pos=t),r}*pushUntil(e){let t=this.pos,n=this.buffer[t];for(;!e(n);)n=this.buffer[++t];return yield*this.pushToIndex(t,!1)}},ir=class{constructor(){this.lineStarts=[],this.addNewLine=e=>this.lineStarts.push(e),this.linePos=e=>{let t=0,n=this.lineStarts.length;for(;t<n;){let r=t+n>>1;this.lineStarts[r]<e?t=r+1:n=r}if(this.lineStarts[t]===e)return{line:t+1,col:1};if(t===0)return{line:0,col:e};let r=this.lineStarts[t-1];return{line:t,col:e-r+1}}}};function X(e,t){for(let n=0;n<e.length;++n)if(e[n].type===t)return!0;return!1}function ar(e){for(let t=0;t<e.length;++t)switch(e[t].type){case`space`:case`comment`:case`newline`:break;default:return t}return-1}function or(e){switch(e?.type){case`alias`:case`scalar`:case`single-quoted-scalar`:case`double-quoted-scalar`:case`flow-collection`:return!0;default:return!1}}function sr(e){switch(e.type){case`document`:return e.start;case`block-map`:{let t=e.items[e.items.length-1];return t.sep??t.start}case`block-seq`:return e.items[e.items.length-1].start;default:return[]}}function cr(e){if(e.length===0)return[];let t=e.length;loop:for(;--t>=0;)switch(e[t].type){case`doc-start`:case`explicit-key-ind`:case`map-value-ind`:case`seq-item-ind`:case`newline`:break loop}for(;e[++t]?.type===`space`;);return e.splice(t,e.length)}function lr(e,t){if(t.length<1e5)Array.prototype.push.apply(e,t);else for(let n=0;n<t.length;++n)e.push(t[n])}function ur(e){if(e.start.type===`flow-seq-start`)for(let t of e.items)t.sep&&!t.value&&!X(t.start,`explicit-key-ind`)&&!X(t.sep,`map-value-ind`)&&(t.key&&(t.value=t.key),delete t.key,or(t.value)?t.value.end?lr(t.value.end,t.sep):t.value.end=t.sep:lr(t.start,t.sep),delete t.sep)}var dr=class{constructor(e){this.atNewLine=!0,this.atScalar=!1,this.indent=0,this.offset=0,this.onKeyLine=!1,this.stack=[],this.source=``,this.type=``,this.lexer=new rr,this.onNewLine=e}*parse(e,t=!1){this.onNewLine&&this.offset===0&&this.onNewLine(0);for(let n of this.lexer.lex(e,t))yield*this.next(n);t||(yield*this.end())}*next(e){if(this.source=e,this.atScalar){this.atScalar=!1,yield*this.step(),this.offset+=e.length;return}let t=Zn(e);if(!t){let t=`Not a YAML token: ${e}`;yield*this.pop({type:`error`,offset:this.offset,message:t,source:e}),this.offset+=e.length}else if(t===`scalar`)this.atNewLine=!1,this.atScalar=!0,this.type=`scalar`;else{switch(this.type=t,yield*this.step(),t){case`newline`:this.atNewLine=!0,this.indent=0,this.onNewLine&&this.onNewLine(this.offset+e.length);break;case`space`:this.atNewLine&&e[0]===` `&&(this.indent+=e.length);break;case`explicit-key-ind`:case`map-value-ind`:case`seq-item-ind`:this.atNewLine&&(this.indent+=e.length);break;case`doc-mode`:case`flow-error-end`:return;default:this.atNewLine=!1}this.offset+=e.length}}*end(){for(;this.stack.length>0;)yield*this.pop()}get sourceToken(){return{type:this.type,offset:this.offset,indent:this.indent,source:this.source}}*step(){let e=this.peek(1);if(this.type===`doc-end`&&e?.type!==`doc-end`){for(;this.stack.length>0;)yield*this.pop();this.stack.push({type:`doc-end`,offset:this.offset,source:this.source})}else{if(!e)return yield*this.stream();switch(e.type){case`document`:return yield*this.document(e);case`alias`:case`scalar`:case`single-quoted-scalar`:case`double-quoted-scalar`:return yield*this.scalar(e);case`block-scalar`:return yield*this.blockScalar(e);case`block-map`:return yield*this.blockMap(e);case`block-seq`:return yield*this.blockSequence(e);case`flow-collection`:return yield*this.flowCollection(e);case`doc-end`:return yield*this.documentEnd(e)}yield*this.pop()}}peek(e){return this.stack[this.stack.length-e]}*pop(e){let t=e??this.stack.pop();if(!t)yield{type:`error`,offset:this.offset,source:``,message:`Tried to pop an empty stack`};else if(this.stack.length===0)yield t;else{let e=this.peek(1);switch(t.type===`block-scalar`?t.indent=`indent`in e?e.indent:0:t.type===`flow-collection`&&e.type===`document`&&(t.indent=0),t.type===`flow-collection`&&ur(t),e.type){case`document`:e.value=t;break;case`block-scalar`:e.props.push(t);break;case`block-map`:{let n=e.items[e.items.length-1];if(n.value){e.items.push({start:[],key:t,sep:[]}),this.onKeyLine=!0;return}if(n.sep)n.value=t;else{Object.assign(n,{key:t,sep:[]}),this.onKeyLine=!n.explicitKey;return}break}case`block-seq`:{let n=e.items[e.items.length-1];n.value?e.items.push({start:[],value:t}):n.value=t;break}case`flow-collection`:{let n=e.items[e.items.length-1];!n||n.value?e.items.push({start:[],key:t,sep:[]}):n.sep?n.value=t:Object.assign(n,{key:t,sep:[]});return}default:yield*this.pop(),yield*this.pop(t)}if((e.type===`document`||e.type===`block-map`||e.type===`block-seq`)&&(t.type===`block-map`||t.type===`block-seq`)){let n=t.items[t.items.length-1];n&&!n.sep&&!n.value&&n.start.length>0&&ar(n.start)===-1&&(t.indent===0||n.start.every(e=>e.type!==`comment`||e.indent<t.indent))&&(e.type===`document`?e.end=n.start:e.items.push({start:n.start}),t.items.splice(-1,1))}}}*stream(){switch(this.type){case`directive-line`:yield{type:`directive`,offset:this.offset,source:this.source};return;case`byte-order-mark`:case`space`:case`comment`:case`newline`:yield this.sourceToken;return;case`doc-mode`:case`doc-start`:{let e={type:`document`,offset:this.offset,start:[]};this.type===`doc-start`&&e.start.push(this.sourceToken),this.stack.push(e);return}}yield{type:`error`,offset:this.offset,message:`Unexpected ${this.type} token in YAML stream`,source:this.source}}*document(e){if(e.value)return yield*this.lineEnd(e);switch(this.type){case`doc-start`:ar(e.start)===-1?e.start.push(this.sourceToken):(yield*this.pop(),yield*this.step());return;case`anchor`:case`tag`:case`space`:case`comment`:case`newline`:e.start.push(this.sourceToken);return}let t=this.startBlockValue(e);t?this.stack.push(t):yield{type:`error`,offset:this.offset,message:`Unexpected ${this.type} token in YAML document`,source:this.source}}*scalar(e){if(this.type===`map-value-ind`){let t=cr(sr(this.peek(2))),n;e.end?(n=e.end,n.push(this.sourceToken),delete e.end):n=[this.sourceToken];let r={type:`block-map`,offset:e.offset,indent:e.indent,items:[{start:t,key:e,sep:n}]};this.onKeyLine=!0,this.stack[this.stack.length-1]=r}else yield*this.lineEnd(e)}*blockScalar(e){switch(this.type){case`space`:case`comment`:case`newline`:e.props.push(this.sourceToken);return;case`scalar`:if(e.source=this.source,this.atNewLine=!0,this.indent=0,this.onNewLine){let e=this.source.indexOf(`
`)+1;for(;e!==0;)this.onNewLine(this.offset+e),e=this.source.indexOf(`
`,e)+1}yield*this.pop();break;default:yield*this.pop(),yield*this.step()}}*blockMap(e){let t=e.items[e.items.length-1];switch(this.type){case`newline`:if(this.onKeyLine=!1,t.value){let n=`end`in t.value?t.value.end:void 0;(Array.isArray(n)?n[n.length-1]:void 0)?.type===`comment`?n?.push(this.sourceToken):e.items.push({start:[this.sourceToken]})}else t.sep?t.sep.push(this.sourceToken):t.start.push(this.sourceToken);return;case`space`:case`comment`:if(t.value)e.items.push({start:[this.sourceToken]});else if(t.sep)t.sep.push(this.sourceToken);else{if(this.atIndentedComment(t.start,e.indent)){let n=e.items[e.items.length-2]?.value?.end;if(Array.isArray(n)){lr(n,t.start),n.push(this.sourceToken),e.items.pop();return}}t.start.push(this.sourceToken)}return}if(this.indent>=e.indent){let n=!this.onKeyLine&&this.indent===e.indent,r=n&&(t.sep||t.explicitKey)&&this.type!==`seq-item-ind`,i=[];if(r&&t.sep&&!t.value){let n=[];for(let r=0;r<t.sep.length;++r){let i=t.sep[r];switch(i.type){case`newline`:n.push(r);break;case`space`:break;case`comment`:i.indent>e.indent&&(n.length=0);break;default:n.length=0}}n.length>=2&&(i=t.sep.splice(n[1]))}switch(this.type){case`anchor`:case`tag`:r||t.value?(i.push(this.sourceToken),e.items.push({start:i}),this.onKeyLine=!0):t.sep?t.sep.push(this.sourceToken):t.start.push(this.sourceToken);return;case`explicit-key-ind`:!t.sep&&!t.explicitKey?(t.start.push(this.sourceToken),t.explicitKey=!0):r||t.value?(i.push(this.sourceToken),e.items.push({start:i,explicitKey:!0})):this.stack.push({type:`block-map`,offset:this.offset,indent:this.indent,items:[{start:[this.sourceToken],explicitKey:!0}]}),this.onKeyLine=!0;return;case`map-value-ind`:if(t.explicitKey){if(!t.sep){if(X(t.start,`newline`))Object.assign(t,{key:null,sep:[this.sourceToken]});else{let e=cr(t.start);this.stack.push({type:`block-map`,offset:this.offset,indent:this.indent,items:[{start:e,key:null,sep:[this.sourceToken]}]})}}else if(t.value)e.items.push({start:[],key:null,sep:[this.sourceToken]});else if(X(t.sep,`map-value-ind`))this.stack.push({type:`block-map`,offset:this.offset,indent:this.indent,items:[{start:i,key:null,sep:[this.sourceToken]}]});else if(or(t.key)&&!X(t.sep,`newline`)){let e=cr(t.start),n=t.key,r=t.sep;r.push(this.sourceToken),delete t.key,delete t.sep,this.stack.push({type:`block-map`,offset:this.offset,indent:this.indent,items:[{start:e,key:n,sep:r}]})}else i.length>0?t.sep=t.sep.concat(i,this.sourceToken):t.sep.push(this.sourceToken)}else t.sep?t.value||r?e.items.push({start:i,key:null,sep:[this.sourceToken]}):X(t.sep,`map-value-ind`)?this.stack.push({type:`block-map`,offset:this.offset,indent:this.indent,items:[{start:[],key:null,sep:[this.sourceToken]}]}):t.sep.push(this.sourceToken):Object.assign(t,{key:null,sep:[this.sourceToken]});this.onKeyLine=!0;return;case`alias`:case`scalar`:case`single-quoted-scalar`:case`double-quoted-scalar`:{let n=this.flowScalar(this.type);r||t.value?(e.items.push({start:i,key:n,sep:[]}),this.onKeyLine=!0):t.sep?this.stack.push(n):(Object.assign(t,{key:n,sep:[]}),this.onKeyLine=!0);return}default:{let r=this.startBlockValue(e);if(r){if(r.type===`block-seq`){if(!t.explicitKey&&t.sep&&!X(t.sep,`newline`)){yield*this.pop({type:`error`,offset:this.offset,message:`Unexpected block-seq-ind on same line with key`,source:this.source});return}}else n&&e.items.push({start:i});this.stack.push(r);return}}}}yield*this.pop(),yield*this.step()}*blockSequence(e){let t=e.items[e.items.length-1];switch(this.type){case`newline`:if(t.value){let n=`end`in t.value?t.value.end:void 0;(Array.isArray(n)?n[n.length-1]:void 0)?.type===`comment`?n?.push(this.sourceToken):e.items.push({start:[this.sourceToken]})}else t.start.push(this.sourceToken);return;case`space`:case`comment`:if(t.value)e.items.push({start:[this.sourceToken]});else{if(this.atIndentedComment(t.start,e.indent)){let n=e.items[e.items.length-2]?.value?.end;if(Array.isArray(n)){lr(n,t.start),n.push(this.sourceToken),e.items.pop();return}}t.start.push(this.sourceToken)}return;case`anchor`:case`tag`:if(t.value||this.indent<=e.indent)break;t.start.push(this.sourceToken);return;case`seq-item-ind`:if(this.indent!==e.indent)break;t.value||X(t.start,`seq-item-ind`)?e.items.push({start:[this.sourceToken]}):t.start.push(this.sourceToken);return}if(this.indent>e.indent){let t=this.startBlockValue(e);if(t){this.stack.push(t);return}}yield*this.pop(),yield*this.step()}*flowCollection(e){let t=e.items[e.items.length-1];if(this.type===`flow-error-end`){let e;do yield*this.pop(),e=this.peek(1);while(e?.type===`flow-collection`)}else if(e.end.length===0){switch(this.type){case`comma`:case`explicit-key-ind`:!t||t.sep?e.items.push({start:[this.sourceToken]}):t.start.push(this.sourceToken);return;case`map-value-ind`:!t||t.value?e.items.push({start:[],key:null,sep:[this.sourceToken]}):t.sep?t.sep.push(this.sourceToken):Object.assign(t,{key:null,sep:[this.sourceToken]});return;case`space`:case`comment`:case`newline`:case`anchor`:case`tag`:!t||t.value?e.items.push({start:[this.sourceToken]}):t.sep?t.sep.push(this.sourceToken):t.start.push(this.sourceToken);return;case`alias`:case`scalar`:case`single-quoted-scalar`:case`double-quoted-scalar`:{let n=this.flowScalar(this.type);!t||t.value?e.items.push({start:[],key:n,sep:[]}):t.sep?this.stack.push(n):Object.assign(t,{key:n,sep:[]});return}case`flow-map-end`:case`flow-seq-end`:e.end.push(this.sourceToken);return}let n=this.startBlockValue(e);n?this.stack.push(n):(yield*this.pop(),yield*this.step())}else{let t=this.peek(2);if(t.type===`block-map`&&(this.type===`map-value-ind`&&t.indent===e.indent||this.type===`newline`&&!t.items[t.items.length-1].sep))yield*this.pop(),yield*this.step();else if(this.type===`map-value-ind`&&t.type!==`flow-collection`){let n=cr(sr(t));ur(e);let r=e.end.splice(1,e.end.length);r.push(this.sourceToken);let i={type:`block-map`,offset:e.offset,indent:e.indent,items:[{start:n,key:e,sep:r}]};this.onKeyLine=!0,this.stack[this.stack.length-1]=i}else yield*this.lineEnd(e)}}flowScalar(e){if(this.onNewLine){let e=this.source.indexOf(`
`)+1;for(;e!==0;)this.onNewLine(this.offset+e),e=this.source.indexOf(`
`,e)+1}return{type:e,offset:this.offset,indent:this.indent,source:this.source}}startBlockValue(e){switch(this.type){case`alias`:case`scalar`:case`single-quoted-scalar`:case`double-quoted-scalar`:return this.flowScalar(this.type);case`block-scalar-header`:return{type:`block-scalar`,offset:this.offset,indent:this.indent,props:[this.sourceToken],source:``};case`flow-map-start`:case`flow-seq-start`:return{type:`flow-collection`,offset:this.offset,indent:this.indent,start:this.sourceToken,items:[],end:[]};case`seq-item-ind`:return{type:`block-seq`,offset:this.offset,indent:this.indent,items:[{start:[this.sourceToken]}]};case`explicit-key-ind`:{this.onKeyLine=!0;let t=cr(sr(e));return t.push(this.sourceToken),{type:`block-map`,offset:this.offset,indent:this.indent,items:[{start:t,explicitKey:!0}]}}case`map-value-ind`:{this.onKeyLine=!0;let t=cr(sr(e));return{type:`block-map`,offset:this.offset,indent:this.indent,items:[{start:t,key:null,sep:[this.sourceToken]}]}}}return null}atIndentedComment(e,t){return this.type!==`comment`||this.indent<=t?!1:e.every(e=>e.type===`newline`||e.type===`space`)}*documentEnd(e){this.type!==`doc-mode`&&(e.end?e.end.push(this.sourceToken):e.end=[this.sourceToken],this.type===`newline`&&(yield*this.pop()))}*lineEnd(e){switch(this.type){case`comma`:case`doc-start`:case`doc-end`:case`flow-seq-end`:case`flow-map-end`:case`map-value-ind`:yield*this.pop(),yield*this.step();break;case`newline`:this.onKeyLine=!1;default:e.end?e.end.push(this.sourceToken):e.end=[this.sourceToken],this.type===`newline`&&(yield*this.pop())}}};function fr(e){let t=e.prettyErrors!==!1;return{lineCounter:e.lineCounter||t&&new ir||null,prettyErrors:t}}function pr(e,t={}){let{lineCounter:n,prettyErrors:r}=fr(t),i=new dr(n?.addNewLine),a=new Kn(t),o=null;for(let t of a.compose(i.parse(e),!0,e.length))if(!o)o=t;else if(o.options.logLevel!==`silent`){o.errors.push(new cn(t.range.slice(0,2),`MULTIPLE_DOCS`,`Source contains multiple documents; please use YAML.parseAllDocuments()`));break}return r&&n&&(o.errors.forEach(un(e,n)),o.warnings.forEach(un(e,n))),o}function mr(e,t,n){let r=null;if(typeof t==`function`||Array.isArray(t)?r=t:n===void 0&&t&&(n=t),typeof n==`string`&&(n=n.length),typeof n==`number`){let e=Math.round(n);n=e<1?void 0:e>8?{indent:8}:{indent:e}}if(e===void 0){let{keepUndefined:e}=n??t??{};if(!e)return}return ne(e)&&!r?e.toString(n):new an(e,r,n).toString(n)}var hr=class e{text;document;constructor(e,t){this.text=e,this.document=t}static parse(t){let n=pr(t),{contents:r}=n,i=r===null||E(r)||O(r)&&r.value===null;return n.errors.length>0||!i?null:new e(t,n)}root(){return E(this.document.contents)?this.document.contents:null}find(e){let t=[],n=this.root();for(let[r,i]of e.entries()){if(!n)return null;t.push(n);let a=n.items.find(e=>gr(e)===i);if(!a)return null;if(r===e.length-1)return{pair:a,maps:t};n=E(a.value)?a.value:null}return null}get(e){let t=this.find(e)?.pair.value;if(O(t)&&t.range){let e=this.text.slice(t.range[0],t.range[1]);return e===``?null:{source:e,text:typeof t.value==`string`?t.value:e,isList:!1}}if(!A(t)&&!T(t))return null;let n=t.range;return{source:this.text.slice(n[0],n[1]).trimEnd(),text:(k(t)&&t.items.every(e=>O(e))?t.items:null)?.map(e=>String(e.value)).join(`
`)??null,isList:k(t)}}keys(e){let t=e.length===0?this.root():this.find(e)?.pair.value;return E(t)?t.items.map(e=>gr(e)??``):[]}pathAt(e){let t=[],n=this.root();for(;n;){let r=n.items.findLast(t=>(Z(t)?.[0]??1/0)<=e),i=r&&gr(r);if(!r||i==null)break;t.push(i),n=E(r.value)&&(Z(r)?.[1]??0)<e?r.value:null}return t}set(e,t){let n=this.root(),r=[];for(let[i,a]of e.entries()){if(!n)return t===null?this.text:this.append(e,t);if(n.anchor||n.tag)return null;let o=n.items.find(e=>gr(e)===a),s=e.slice(i);if(!o)return t===null?this.text:this.insert(n,s,t);if(r.push([n,o]),s.length===1)return t===null?this.remove(r):this.replace(n,o,t);let c=o.value;if(E(c))n=c;else if(c===null||O(c)&&c.value===null)return t===null?this.text:this.replace(n,o,t,s.slice(1));else return null}return null}append(e,t){let{contents:n}=this.document,r=O(n)&&n.range&&n.range[0]!==n.range[1]?n.range:null;return _r(r?this.text.slice(0,r[0])+this.text.slice(r[1]):this.text)+yr(e,t,``)}insert(e,t,n){let r=e.range;if(e.flow){let i=r[1]-1,a=this.text.slice(0,i).trimEnd();return this.text.slice(r[0],i).includes(`#`)?null:a+(e.items.length>0&&!a.endsWith(`,`)?`, `:``)+br(t,n)+this.text.slice(i)}let[i,a]=[e.items[0],e.items.at(-1)],o=i&&Z(i)?.[0];if(o===void 0||!a)return null;let s=this.indent(o);if(s===null)return null;let c=this.endOf(a);return _r(this.text.slice(0,c))+yr(t,n,s)+this.text.slice(c)}replace(e,t,n,r=[]){let i=Z(t),a=t.value;if(!i||T(a))return null;let o=O(a)||A(a)?a:null;if(o&&(o.anchor||o.tag))return null;let s=o?.range??null,c=e.flow?null:this.indent(i[0]),l=A(a)&&!a.flow,u=typeof n==`string`&&r.length===0;if(s&&s[0]!==s[1]&&!l&&(u||e.flow||A(a)&&r.length===0)){let e=O(a)&&(a.type===`BLOCK_LITERAL`||a.type===`BLOCK_FOLDED`)?null:this.text;if(e)return e.slice(0,s[0])+xr(r,n)+e.slice(s[1])}let d=this.text.indexOf(`:`,i[1]);if(d<0)return null;if(e.flow)return`${this.text.slice(0,d+1)} ${xr(r,n)}${this.text.slice(Math.max(d+1,s?.[1]??0))}`;if(c===null)return null;let f=this.text.slice(i[0],i[1]),p=this.endOf(t);if(u)return`${this.text.slice(0,i[0])}${f}: ${n}\n${this.text.slice(p)}`;let m=this.text.indexOf(`
`,d),h=m<0?``:this.text.slice(d+1,m),g=/^\s*#/.test(h)?h:``,_=r.length>0?yr(r,n,`${c}  `):vr(n,k(a)&&l?this.indent(a.range[0])??`${c}  `:`${c}  `);return`${this.text.slice(0,d+1)}${g}\n${_}${this.text.slice(p)}`}remove(e){let[t,n]=e.at(-1);for(;t.items.length===1&&e.length>1;)e.pop(),[t,n]=e.at(-1);let r=Z(n);if(!r)return null;if(!t.flow){let e=this.indent(r[0]);return e===null?null:this.text.slice(0,r[0]-e.length)+this.text.slice(this.endOf(n))}let i=t.items.indexOf(n),a=t.items[i+1];if(a)return this.text.slice(0,r[0])+this.text.slice(Z(a)?.[0]??r[0]);let o=t.items[i-1],s=o?this.valueEnd(o):r[0];return this.text.slice(0,s)+this.text.slice(this.valueEnd(n))}valueEnd(e){return e.value?.range?.[1]??Z(e)?.[1]??this.text.length}endOf(e){let t=this.valueEnd(e);if(A(e.value)&&!e.value.flow){let n=e.value.items.at(-1);if(n&&typeof n==`object`&&`key`in n)return this.endOf(n);let r=n?.range;if(A(n)&&!n.flow&&E(n)&&n.items.length>0)return this.endOf(n.items.at(-1));t=r?.[1]??t}if(t>0&&this.text[t-1]===`
`)return t;let n=this.text.indexOf(`
`,t);return n<0?this.text.length:n+1}indent(e){let t=this.text.slice(this.text.lastIndexOf(`
`,e-1)+1,e);return/^ *$/.test(t)?t:null}};function gr(e){return O(e.key)?String(e.key.value):null}function Z(e){return O(e.key)?e.key.range??null:null}function _r(e){return e===``||e.endsWith(`
`)?e:`${e}\n`}function vr(e,t){return e.map(e=>`${t}- ${Sr(e)}\n`).join(``)}function yr(e,t,n){let[r,...i]=e;return i.length>0?`${n}${r}:\n${yr(i,t,`${n}  `)}`:typeof t==`string`?`${n}${r}: ${t}\n`:t.length===0?`${n}${r}: []\n`:`${n}${r}:\n${vr(t,`${n}  `)}`}function br([e,...t],n){return`${e}: ${t.length>0?`{${br(t,n)}}`:xr([],n)}`}function xr(e,t){return e.length>0?`{${br(e,t)}}`:typeof t==`string`?t:JSON.stringify(t)}function Sr(e){if(/[\n\r]/.test(e))return JSON.stringify(e);let t=mr(e,{lineWidth:0}).trimEnd();return t.includes(`
`)||/^[^"']/.test(t)&&/[,[\]{}]/.test(t)?JSON.stringify(e):t}function Cr(e){if(e.includes(`
`)||e.trim()===``)return!1;let t=pr(`{a: ${e}}`);return t.errors.length===0&&E(t.contents)&&t.contents.items.length===1&&!e.includes(` #`)}var wr=[{goal:`image`,title:`Pictures`,about:`A person, a thing or a style, as a LoRA for an image model.`,data:`A folder of ten or more pictures, each with a caption in a text file of the same name.`},{goal:`video`,title:`Videos`,about:`A motion, a person or a style, as a LoRA for a video model.`,data:`A folder of short clips, each with a caption in a text file of the same name; pictures may be among them.`},{goal:`chat`,title:`Chat`,about:`How a model answers: its tone, its knowledge, its form.`,data:`Files of conversations (in “messages”) or of questions with answers (in “prompt” and “completion”): JSON lines, JSON, CSV or Parquet.`},{goal:`text`,title:`Text`,about:`How a model continues texts: of stories, notes or code. Also a small model from nothing.`,data:`Files of text, or records with “text”: plain text, JSON lines, JSON, CSV or Parquet.`}],Tr=Object.assign({"../../../../configs/anima.yaml":t,"../../../../configs/chroma.yaml":n,"../../../../configs/ci.yaml":r,"../../../../configs/flux1.yaml":i,"../../../../configs/flux2-klein.yaml":a,"../../../../configs/garments-lora.yaml":o,"../../../../configs/garments.yaml":s,"../../../../configs/krea-2.yaml":c,"../../../../configs/lora-dpo.yaml":l,"../../../../configs/qwen-image-edit.yaml":u,"../../../../configs/qwen-image.yaml":d,"../../../../configs/sdxl.yaml":f,"../../../../configs/small.yaml":p,"../../../../configs/smollm2-lora.yaml":m,"../../../../configs/wan21-1.3b.yaml":h,"../../../../configs/wan22-i2v-a14b.yaml":g,"../../../../configs/wan22-t2v-a14b.yaml":_,"../../../../configs/wan22-ti2v-5b.yaml":v,"../../../../configs/z-image.yaml":y}),Q=(e,t)=>{let n=e?.get(t.split(`.`));return n?n.text??n.source:null},Er=e=>/^.*?\.(?= |$)/.exec(e)?.[0]??e;function Dr(e,t){let n=t.replace(/^# yaml-language-server.*\n/,``),r=hr.parse(n),i=(/^(?:#.*\n)+/.exec(n)?.[0]??``).replace(/^# ?/gm,``).replaceAll(`
`,` `).trim(),a=[...i.matchAll(/\(([^)]*)\)/g)].map(([,e])=>e),o=Q(r,`data.num_frames`),s=`text`;return Q(r,`data.resolution`)!==null&&(s=o===null?`image`:`video`),{name:e.slice(e.lastIndexOf(`/`)+1,-5),about:Er(i),text:n,goal:s,model:Q(r,`model.name_or_path`),hub:a.flatMap(e=>e.match(/[\w-]+\/[\w.-]*\w/g)??[])}}var Or=Object.entries(Tr).map(([e,t])=>Dr(e,t)),kr=()=>Or.find(e=>e.name===`small`)?.text??``,Ar=e=>e.split(`/`).at(-1).toLowerCase();function jr(e,t){let n=e=>[e.model,...e.hub].filter(e=>e!==null).map(Ar);return Or.filter(e=>!/^preference:/m.test(e.text)).find(r=>r.goal===e&&n(r).includes(Ar(t)))}var Mr=`my-lora`,Nr=e=>`name: ${Mr}

model:
  name_or_path: model

adapter:
  r: 16
  lora_alpha: 16

data:
  path: data
  resolution: 512
${e}  trigger_word: ohwx
  caption_dropout: 0.05
  validation_fraction: 0.1

train:
  max_steps: 2000
  per_device_train_batch_size: 1
  gradient_checkpointing: true
  learning_rate: 0.0001
  lr_scheduler_type: constant
  warmup_ratio: 0.01
  eval_steps: 100
  max_eval_samples: 8
  save_steps: 200
  save_total_limit: 4

sample:
  sample_steps: 200
  prompts:
    - ohwx sits on a bench in a park
`,Pr=`name: ${Mr}

model:
  name_or_path: model

adapter:
  r: 16
  lora_alpha: 32
  target_modules: all-linear

data:
  path: data
  block_size: 512

train:
  max_steps: 500
  per_device_train_batch_size: 4
  learning_rate: 0.0002
  warmup_ratio: 0.02
  eval_steps: 100
  max_eval_samples: 64
  save_steps: 100
  save_total_limit: 2

sample:
  sample_steps: 100
  max_new_tokens: 100
`,Fr={image:Nr(``),video:Nr(`  num_frames: [1, 33]
  frame_extraction: head
`),chat:Pr,text:Pr};function Ir(e,t){let n=e;for(let[e,r]of Object.entries(t)){let t=e.split(`.`),i=hr.parse(n);(r!==null||i?.get(t))&&(n=i?.set(t,r)??n)}return n}var Lr=e=>Sr(e.replaceAll(`$`,`$$$$`));function Rr(e,t,n){return Ir(jr(e,t)?.text??Fr[e],{"model.name_or_path":t.startsWith(`/`)?Lr(t):Sr(t),...n})}function zr(e){let t=e===`chat`||e===`text`;return Or.filter(n=>n.goal===(t?`text`:e)).flatMap(({hub:e,about:n})=>e.map(e=>({name:e,about:t?null:n.replace(/ \([\w-]+\/[^)]*\)/g,``)})))}function Br(e,{makes:t}){return t===e||e===`text`&&t===`chat`}var Vr={int8:` in 8 bits`,nf4:` in 4 bits`};function Hr({memory:t,ways:n}){let r=n.find(({fits:e})=>e);if(!r){let r=n.reduce((e,{need:t})=>Math.min(e,t),1/0);return{text:`too large: needs ${e(r)} of ${e(t)}`,level:`failed`,keys:{}}}let{quantization:i,offload:a,need:o}=r,s=i===null?``:Vr[i],c={"model.quantization":i,"model.offload":a?`auto`:null};return{text:`${a?`streamed${s}, slower`:`fits${s}`}: ${e(o)} of ${e(t)}`,level:a?`warning`:s?`info`:`completed`,keys:c}}var $=(e,t,n)=>({path:e.split(`.`),label:t,about:n}),Ur=$(`name`,`Name`,`The folder of the run is called like this.`),Wr=$(`train.max_steps`,`Steps`,`How long it trains. Checkpoints on the way are kept: a LoRA is often best before the end.`),Gr=$(`train.learning_rate`,`Learning rate`,`How far each step goes. Too high and the model breaks, too low and it learns nothing.`),Kr=$(`adapter.r`,`LoRA rank`,`How much the LoRA can hold: 8 to 16 for a person or a thing, 32 for a style or much data.`),qr=$(`data.trigger_word`,`Trigger word`,`A word that prompts call the result by. A rare one, so that it means nothing else yet.`),Jr=$(`data.resolution`,`Size`,`The side of a square of the same area, in pixels. Half of it is about four times as fast.`),Yr=$(`data.num_frames`,`Frames per clip`,`One or several lengths. Longer clips need more memory.`),Xr=$(`sample.prompts`,`Prompts for samples`,`What is generated on the way, to judge the run by.`),Zr=$(`data.block_size`,`Length in tokens`,`Longer examples are cut off here. Twice the length needs about twice the memory.`),Qr=e=>$(`train.per_device_train_batch_size`,`${e} per step`,`The batch size. More make steps steadier, and need more memory.`),$r=$(`data.validation_fraction`,`Held out`,`The share of the data that is not trained on, and shows whether the model only memorises.`),ei=$(`model.hidden_size`,`Width of the model`,`Wider models learn more, and train more slowly.`);function ti(e,t){let n=t?ei:Kr;switch(e){case`image`:return[Ur,qr,Wr,Gr,n,Jr,Qr(`Pictures`),Xr];case`video`:return[Ur,qr,Wr,Gr,n,Jr,Yr,Xr];case`chat`:return[Ur,Wr,Gr,n,Zr,Qr(`Conversations`),$r,Xr];case`text`:return[Ur,Wr,Gr,n,Zr,Qr(`Texts`),$r,Xr]}}function ni(e){let t=hr.parse(e);return Q(t,`data.resolution`)===null?`text`:Q(t,`data.num_frames`)===null?`image`:`video`}var ri=e=>Q(hr.parse(e),`model.name_or_path`)===null;export{wr as GOALS,Or as TEMPLATES,Mr as UNNAMED,Rr as begin,kr as freshText,ni as goalOf,ri as isFresh,Cr as n,zr as onHub,ti as questions,Sr as r,Br as suits,hr as t,Q as value,Hr as verdict,Ir as withKeys,Lr as written};