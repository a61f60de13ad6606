"""Batch: the integers of one step, as the layers see them. Addresses are fixed, so a captured graph can use
them."""

from dataclasses import dataclass

from xinfer.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """T tokens of B sequences, one sequence after the other; M pages a sequence may have.

    tokens      i32 [T]    ids; -1: the last token sampled for the row (`token_rows`); -2: a padded token
    positions   i32 [T]    from 0, in the request
    kv_slots    i32 [T]    page * 64 + offset where the token's key and value go; -1: nowhere
    token_rows  i32 [T]    row of the request in per-request device state
    q_start     i32 [B+1]  where each sequence's tokens start
    kv_len      i32 [B]    keys of each sequence once this step's are written; 0: a padded sequence
    page_table  i32 [B,M]  pages in order of position
    logit_rows  i32 [N]    the tokens whose logits are wanted; -1: a padded row
    """

    tokens: Tensor
    positions: Tensor
    kv_slots: Tensor
    token_rows: Tensor
    q_start: Tensor
    kv_len: Tensor
    page_table: Tensor
    logit_rows: Tensor

    @property
    def num_tokens(self) -> int:
        return self.tokens.shape[0]

    @property
    def num_seqs(self) -> int:
        return self.kv_len.shape[0]

    @property
    def num_logits(self) -> int:
        return self.logit_rows.shape[0]
