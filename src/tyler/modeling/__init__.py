"""What the model is: the backbone theta, its LoRAs, the operators O_k, and how all of it is saved.

operators.py      O_k: a name, a number of latents, a boundary rule
synthesis.py      Q_k, Proj_k and Synth: from a context to latents
interventions.py  heads removed, swapped, shared, zeroed or fixed
policy.py         p over V' = V and U: the rows psi beside the LM head
backbone.py       theta: a causal language model with its tokenizer and prompt
fingerprint.py    a short hash of every weight, which names a backbone
architectures.py  which families and published models are known, without torch
tokenizer.py      a model's own tokenizer, which splits text as it was saved
gguf.py           a GGUF file's settings and tensors, without torch
gguf_model.py     a GGUF file as an ordinary model, dequantised, with its tokenizer (gguf_tokenizer.py)
random_init.py    an architecture with random weights, for dry runs and tests
attention.py      attention as rollout, replay and learner compute it
products.py       products in half precision that are summed in float32
lora.py           views of one set of weights, each with a LoRA of its own
digests.py        sha256 of files, without torch
memory_errors.py  what running out of memory looks like
manifest.py       what checkpoints of every kind share: which backbone, and digests of the files
tensor_files.py   safetensors files, read with every name, shape and number checked
independent.py    how the models that a user holds are copied
loading.py        backbones with adapters merged into them (merged_adapters.py)
checkpoint.py     a Tyler directory: written atomically, read with every key checked
"""
