"""A pretrained model says what kind of answer a question asks for; how well depends on its prompt."""
