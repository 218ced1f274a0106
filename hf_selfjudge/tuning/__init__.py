"""A judge fitted where it will work: in the decoding loop, on what becomes of whole answers.

Labels of single substitutions miss what happens in decoding, where the draft's next tokens come with its token and one
accepted token stands beside ten others. Here prompts are answered several times by judge decoding that accepts at
random (`explorer`, `rollouts`); since chance decides, the answers tell what each kind of accepted token costs, and how
many tokens it wins (`effects`). The result is a linear judge like any other (`judge`), whose inputs are other judges'
opinions and the scalars of the verification forward. No ground truth: what counts is how much an answer resembles exact
decoding's text (`resemblance`) and, where a prompt has a checker, whether it is the one that most of the other rollouts
give (`votes`).
"""
