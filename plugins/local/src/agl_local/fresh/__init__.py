"""A small policy for one's own task, made from nothing: tokenizer, template, network, lessons, a look."""
