"""Two of four: a compressed weight whose words are the A registers of mma.sp, products of a 2:4 sparse A.

W [m, k] is cut into blocks of 32 rows x 256 columns, numbered row by row. Of each group of four columns in a row two
non-zeros stay in place. The others move to *gathered* columns: copies of columns of the block, 32 to a step,
in which again a row has at most two of each four. The two are the slots of the 32-bit register that mma.sp wants of a
group, the left one low; a single non-zero takes the low slot, or the high one where it is the group's last. A block is
the share of one warp, each of whose 32 lanes has the groups that two 16-row fragments of mma.sp.m16n8k32 want of it,
step after step: eight steps of the block's own columns, then the gathered ones. In 32-bit words, a block is

  4 * 32   parities: for each pair of own steps, of each lane a bit for each of its slots, in the order step, fragment,
           register, slot: the parity of the count of non-zeros up to there, from the block's begin on, so that a slot
           is not zero where its bit differs from the one before it;
  16       starts: of each lane 16 bits, where its words begin among the lanes'; from bit 12 on how many steps are
           gathered;
  4 * 64   metadata as mma.sp wants it: for each pair of own steps, of each lane two words;
  32 + 16  for each gathered step: its metadata; of each lane 16 bits, its flags, bit fragment * 4 + register saying
           whether it has a word there, and from bit 8 on which column of the block the step's column with the lane's
           number is;
  the words of the lanes, lane after lane: the non-zero slots of the own steps, two to a word, the earlier one high;
  then of the gathered steps, which are mostly empty, whole words of two slots; zeros up to a unit of 16 bytes.

`offsets` says at which unit each block begins and the last one ends.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from impl.flash_llm.formats.base import SparseMatrix, first_true

BLOCK_ROWS = 32
BLOCK_COLS = 256
STEP_COLS = 32
LANES = 32
UNIT_WORDS = 4
GATHERED_STEPS = 8  # at most: 128 columns at first; of each 32 gathered ones at most 16 have to be gathered again

_OWN_STEPS = BLOCK_COLS // STEP_COLS
_REGISTERS = 8  # of a lane in a step
_BANKS = 8  # of 16 bytes of a row of X, by rows modulo 8
_OWN_REGISTERS = _OWN_STEPS * _REGISTERS
_OWN_PAIRS = _OWN_STEPS // 2
_OWN_PARTS = (LANES * _OWN_PAIRS, LANES // 2, LANES * _OWN_STEPS)  # parities, starts, metadata
_OWN_WORDS = sum(_OWN_PARTS)  # before the gathered steps
_GATHERED_WORDS = LANES + LANES // 2
_STEPS_SHIFT = 12  # of the number of gathered steps, beside a start

# Axes of the groups, [fragment, row half, row, step, column half, column], as lanes have them: [lane, step, register]
# and, of the metadata, [lane, step, nibble]: impl/cuda/include/mma_sp_sm80.cuh.
_REGISTERS_OF_GROUPS = (2, 5, 3, 0, 4, 1)
_NIBBLES_OF_GROUPS = (2, 0, 4, 3, 1, 5)

# The places of a group's two stored elements, by the bits of its non-zeros: the first two of them; where there is one
# or none, a zero beside it.
_PLACES = [(0, 1), (0, 1), (1, 2), (0, 1), (2, 3), (0, 2), (1, 2), (0, 1),
           (2, 3), (0, 3), (1, 3), (0, 1), (2, 3), (0, 2), (1, 2), (0, 1)]  # fmt: skip

# Its surplus, by the same bits: what the first two leave, then what the last two leave, a byte for each element.
_NONZEROS = [[place for place in range(4) if bits >> place & 1] for bits in range(16)]
_SURPLUS = [
    sum(1 << 8 * place for place in places[kept]) for kept in (slice(2, None), slice(-2)) for places in _NONZEROS
]


class TwoOfFour(SparseMatrix):
    """A sparse fp16 matrix in the format two of four. data: units, int32 [units, 4]; offsets in units of 16 bytes."""

    name = "two_of_four"
    version = "2"  # 1 had a word for each group
    tile = (BLOCK_ROWS, BLOCK_COLS)
    words = UNIT_WORDS
    units_of_tile = (
        _OWN_WORDS // UNIT_WORDS,
        (_OWN_WORDS + GATHERED_STEPS * _GATHERED_WORDS + BLOCK_ROWS * BLOCK_COLS // 2) // UNIT_WORDS,
    )

    @classmethod
    def expand(cls, data: Tensor, offsets: Tensor, first: int, last: int) -> Tensor:
        begin = offsets[first:last].long() * UNIT_WORDS
        stored, flags, starts, steps, nibbles, columns = _read(data.view(-1), begin)
        slots = torch.zeros(
            *stored.shape[:2], 2 * (_OWN_REGISTERS + flags.shape[2]), dtype=torch.int16, device=data.device
        )
        halves, words = _addresses(stored, flags, _first_words(begin, steps) + starts)
        slots[:, :, : 2 * _OWN_REGISTERS][stored] = data.view(-1).view(torch.int16)[halves]
        words_of = slots.view(torch.int32)
        words_of[:, :, _OWN_REGISTERS:][flags] = data.view(-1)[words]
        words_of = _to_groups(words_of, _REGISTERS_OF_GROUPS)
        places = _to_groups(nibbles, _NIBBLES_OF_GROUPS).unsqueeze(3)
        places = torch.cat([places & 3, places >> 2], 3).long()
        fours = torch.zeros(*words_of.shape, 4, dtype=torch.int16, device=data.device)
        fours.scatter_(3, places, words_of.unsqueeze(3).view(torch.int16))  # as integers: NaN keep their bits
        own, gathered = fours.flatten(2).split([BLOCK_COLS, fours.shape[2] * 4 - BLOCK_COLS], 2)
        block, row, place = gathered.nonzero().unbind(1)
        own[block, row, columns[block, place]] = gathered[block, row, place]
        return own.contiguous().view(torch.float16)

    @classmethod
    def _encode(cls, tiles: Tensor) -> tuple[Tensor, Tensor]:
        if tiles.is_cuda:
            from impl.cuda.launch import launch
            from impl.flash_llm.kernels.convert import convert

            return convert(tiles, launch)
        values = tiles.contiguous().view(torch.int16)
        values, columns, steps = _gather(torch.where(tiles == 0, 0, values))  # without -0.0
        words, nibbles = _groups(values)
        words = _to_lanes(words, _REGISTERS_OF_GROUPS)
        metadata = _pack(_to_lanes(nibbles, _NIBBLES_OF_GROUPS).unflatten(2, (-1, 8)), 4)
        slots = words[:, :, :_OWN_REGISTERS].contiguous().view(torch.int16)
        stored, flags = slots != 0, words[:, :, _OWN_REGISTERS:] != 0
        parities = _pack(stored.cumsum(2, dtype=torch.int32).unflatten(2, (_OWN_PAIRS, -1)) & 1, 1)

        starts, ends = _starts(stored, flags, steps)
        counts = -(-ends // UNIT_WORDS)
        begin = (counts.cumsum(0) - counts) * UNIT_WORDS
        data = torch.zeros(int(counts.sum()) * UNIT_WORDS, dtype=torch.int32, device=tiles.device)
        own_metadata = metadata[:, :, :_OWN_STEPS].unflatten(2, (_OWN_PAIRS, 2)).transpose(1, 2).flatten(1)
        heads = [
            parities.transpose(1, 2).flatten(1),
            _halves(starts | steps.unsqueeze(1) << _STEPS_SHIFT),
            own_metadata,
        ]
        data[begin.unsqueeze(1) + torch.arange(_OWN_WORDS, device=data.device)] = torch.cat(heads, 1)
        bits = _pack(flags.unflatten(2, (-1, _REGISTERS)), 1)
        for step in range(bits.shape[2]):
            block = (steps > step).nonzero().squeeze(1)
            lanes = bits[block, :, step] | columns[block, step * STEP_COLS : (step + 1) * STEP_COLS] << 8
            data[_gathered_words(begin[block], step)] = torch.cat(
                [metadata[block, :, _OWN_STEPS + step], _halves(lanes)], 1
            )
        halves, places = _addresses(stored, flags, _first_words(begin, steps) + starts)
        data.view(torch.int16)[halves] = slots[stored]
        data[places] = words[:, :, _OWN_REGISTERS:][flags]
        return data.view(-1, UNIT_WORDS), counts

    def _check_tiles(self, first: int, last: int) -> None:
        """Every block can be read, lies in the matrix, and is what a conversion makes of it."""
        data, begin = self.data.view(-1), self.offsets[first:last].long() * UNIT_WORDS
        have = self.offsets[first : last + 1].diff()

        def refuse(wrong: Tensor, what: str) -> None:
            if (place := first_true(wrong)) is not None:
                if place > 0:
                    self._check_tiles(first, first + place)  # what is wrong with an earlier one comes first
                raise self._fault(first + place, what)

        halves = torch.arange(_OWN_PARTS[0], sum(_OWN_PARTS[:2]), device=self.device)
        steps = _halves_of(data[begin.unsqueeze(1) + halves]) >> _STEPS_SHIFT
        most = steps.amax(1)
        long = _OWN_WORDS + _GATHERED_WORDS * most > have * UNIT_WORDS
        refuse((most > GATHERED_STEPS) | long, "more gathered steps than it can have")
        stored, flags, starts, _, _, columns = _read(data, begin)
        expected, ends = _starts(stored, flags, steps[:, 0])
        refuse(-(-ends // UNIT_WORDS) != have, f"its bits need another number of units of {UNIT_WORDS} words")
        refuse((starts != expected).any(1), "its lanes' words begin elsewhere than its bits say")
        refuse((columns >= BLOCK_COLS).any(1), f"it gathers a column beyond its {BLOCK_COLS}")
        tiles = self.expand(self.data, self.offsets, first, last)
        edge, outside = self._outside(first, last)
        wrong = torch.zeros_like(have, dtype=torch.bool)
        wrong[edge] = ((tiles[edge] != 0) & outside).flatten(1).any(1)
        refuse(wrong, f"an element lies outside the matrix of shape {self.shape}")
        again, counts = self._encode(tiles)
        refuse(counts != have, "it is not what a conversion makes of its elements")
        different = (again != self.data[self.offsets[first] : self.offsets[last]]).any(1).nonzero().squeeze(1)
        wrong[torch.searchsorted(self.offsets[first:last], different + self.offsets[first], right=True) - 1] = True
        refuse(wrong, "it is not what a conversion makes of its elements")


def _gather(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows whose groups have two non-zeros at most, as their last columns are copies of the first ones.

    values: int16 [blocks, 32, 256], bits of float16 without -0.0. Gives int16 [blocks, 32, 256 + 32 * most steps], of
    each gathered column which one it is, int64 [blocks, 32 * most steps], and int64 [blocks] gathered steps.
    """
    rest = _surplus(values, torch.arange(BLOCK_COLS // 4, device=values.device, dtype=torch.int32) // 2 % 2)
    own = values.masked_fill(rest, 0)
    gathered = torch.zeros(len(values), BLOCK_ROWS, GATHERED_STEPS * STEP_COLS, dtype=torch.int16, device=values.device)
    numbers = torch.arange(BLOCK_COLS, device=values.device).expand(len(values), -1)
    columns = torch.nn.functional.pad(numbers % _BANKS, (0, 1))  # one more, for what goes nowhere
    taken = torch.zeros_like(columns, dtype=torch.bool)
    block, row, column = rest.nonzero().unbind(1)
    moved = values[block, row, column]
    while len(block):
        needed = values.new_zeros(numbers.shape, dtype=torch.bool)
        needed.view(-1).index_fill_(0, block * BLOCK_COLS + column, True)
        place = torch.where(needed, _places(needed, taken[:, :-1]), BLOCK_COLS)
        columns.scatter_(1, place, numbers)
        taken.scatter_(1, place, True)
        gathered[block, row, place[block, column]] = moved
        rest = _surplus(gathered)
        block, row, column = rest.nonzero().unbind(1)
        moved, column = gathered[block, row, column], columns[block, column]
        gathered.masked_fill_(rest, 0)
    steps = taken[:, :-1].unflatten(1, (-1, STEP_COLS)).any(2).sum(1)
    return torch.cat([own, gathered[:, :, : int(steps.max()) * STEP_COLS]], 2), columns, steps


def _surplus(values: Tensor, mirrored: Tensor | int = 0) -> Tensor:
    """Which elements of rows [..., columns] are the third or fourth non-zero of their group, or, where a group is
    `mirrored` (1, or int32 [groups]), so from its end. Columns of all residues modulo 8 have some, if every other two
    are mirrored."""
    pattern = _pattern(values) + 16 * mirrored
    return _tables(values.device)[1].index_select(0, pattern.flatten()).view(pattern.shape).view(torch.bool)


@functools.cache
def _tables(device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.tensor(_PLACES, device=device), torch.tensor(_SURPLUS, device=device, dtype=torch.int32)


def _pattern(values: Tensor) -> Tensor:
    """The non-zeros of each group of rows [..., columns] as four bits: int32 [..., columns / 4]."""
    return (values != 0).view(torch.int32) * 0x01020408 >> 24 & 15  # of four bytes that are 0 or 1


def _places(needed: Tensor, taken: Tensor) -> Tensor:
    """Gathered columns for the columns that are `needed`, among those that are not `taken`: bool [blocks, 256] both.

    ldmatrix reads X's rows by eights, and rows that differ modulo 8 lie in different banks: the first ones that are
    needed of each residue go to places of this residue. Others go to any place, neighbours to different groups.
    """
    columns = torch.arange(BLOCK_COLS, device=needed.device)
    rank = (needed.unflatten(1, (-1, _BANKS)).cumsum(1) - 1).flatten(1)
    banked = rank * _BANKS + columns % _BANKS
    steps = -(-needed.sum(1, keepdim=True) // STEP_COLS)
    fits = needed & (rank < steps * (STEP_COLS // _BANKS)) & ~taken.any(1, keepdim=True)
    nowhere = torch.nn.functional.pad(taken, (0, 1))
    free = ~nowhere.scatter(1, torch.where(fits, banked, BLOCK_COLS), True)[:, :-1]
    order = columns // STEP_COLS * STEP_COLS + columns % 8 * 4 + columns % STEP_COLS // 8
    free = free[:, order]
    nth = torch.where(free, free.cumsum(1) - 1, BLOCK_COLS)
    nth = torch.zeros(nowhere.shape, dtype=torch.int64, device=nth.device).scatter_(1, nth, order.expand_as(nth))
    return torch.where(fits, banked, nth.gather(1, ((needed & ~fits).cumsum(1) - 1).clamp(min=0)))


def _groups(values: Tensor) -> tuple[Tensor, Tensor]:
    """Words and metadata of the groups of rows [blocks, 32, columns]: int32 [blocks, 32, columns / 4] both."""
    pattern = _pattern(values)
    places = _tables(values.device)[0].index_select(0, pattern.flatten()).view(*pattern.shape, 2)
    words = values.unflatten(2, (-1, 4)).gather(3, places).view(torch.int32).squeeze(3)
    return words, (places[..., 0] | places[..., 1] << 2).int()


def _starts(stored: Tensor, flags: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
    """Where each lane's words begin among the lanes', and the block's end: int64 [blocks, 32] and [blocks]."""
    counts = _words_of(stored.sum(2)) + flags.sum(2)
    ends = counts.cumsum(1)
    return ends - counts, _first_words(0, steps).squeeze(1) + ends[:, -1]


def _first_words(begin: Tensor | int, steps: Tensor) -> Tensor:
    """Where the lanes' words begin in blocks that begin at `begin`: int64 [blocks, 1]."""
    return (begin + _OWN_WORDS + _GATHERED_WORDS * steps).unsqueeze(1)


def _words_of(halves: Tensor) -> Tensor:
    return (halves + 1) // 2


def _addresses(stored: Tensor, flags: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Of the halves that lanes have by `stored` among all halves, and of the words that they have by `flags` among all
    words, in their order; starts: int64 [blocks, 32], among all words."""
    rank = stored.cumsum(2) - 1
    halves = 2 * starts.unsqueeze(2) + (rank ^ 1)
    first = starts + _words_of(rank[:, :, -1] + 1)
    return halves[stored], (first.unsqueeze(2) + flags.cumsum(2) - 1)[flags]


def _read(data: Tensor, begin: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Blocks that begin at the words `begin`: which slots and which gathered words are stored, starts, the number of
    gathered steps, metadata by nibbles, and gathered columns.

    bool [blocks, 32 lanes, 16 * own steps] and [blocks, 32, 8 * gathered steps], int64 [blocks, 32] and [blocks], int32
    [blocks, 32 lanes, nibbles], int64 [blocks, 32 * gathered steps], with as many steps as the block with the most has.
    """
    heads = data[begin.unsqueeze(1) + torch.arange(_OWN_WORDS, device=data.device)]
    parities, starts, metadata = heads.split(_OWN_PARTS, 1)
    parities = _unpack(parities.unflatten(1, (-1, LANES)).transpose(1, 2), 1)
    metadata = metadata.unflatten(1, (-1, LANES, 2)).transpose(1, 2).flatten(2)
    stored = (parities ^ torch.nn.functional.pad(parities[:, :, :-1], (1, 0))).bool()
    starts, metadata = _halves_of(starts), _unpack(metadata, 4)
    steps = starts[:, 0] >> _STEPS_SHIFT
    flags, columns = [stored[:, :, :0]], [steps.new_empty(len(begin), 0)]
    for step in range(int(steps.max())):
        there = (steps > step).unsqueeze(1)
        more, halves = torch.where(there, data[_gathered_words(begin, step) * there], 0).split([LANES, LANES // 2], 1)
        halves = _halves_of(halves)
        flags.append(_unpack(halves.unsqueeze(2), 1)[:, :, :_REGISTERS].bool())
        metadata = torch.cat([metadata, _unpack(more.unsqueeze(2), 4)], 2)
        columns.append(halves >> 8)
    return stored, torch.cat(flags, 2), starts & (1 << _STEPS_SHIFT) - 1, steps, metadata, torch.cat(columns, 1)


def _gathered_words(begin: Tensor, step: int) -> Tensor:
    """Where the words of a gathered step are, in blocks that begin at `begin`: int64 [blocks, 48]."""
    first = _OWN_WORDS + _GATHERED_WORDS * step
    return begin.unsqueeze(1) + torch.arange(first, first + _GATHERED_WORDS, device=begin.device)


def _pack(fields: Tensor, bits: int) -> Tensor:
    """Fields [..., n] of so many bits as an int32, the first lowest: [...]."""
    shifts = torch.arange(0, bits * fields.shape[-1], bits, device=fields.device, dtype=torch.int32)
    return (fields.int() << shifts).sum(-1, dtype=torch.int32)


def _unpack(words: Tensor, bits: int) -> Tensor:
    """The fields of so many bits of [..., n] words of 32 bits: int32 [..., n * 32 / bits]."""
    shifts = torch.arange(0, 32, bits, device=words.device, dtype=torch.int32)
    return (words.int().unsqueeze(-1) >> shifts & (1 << bits) - 1).flatten(-2)


def _halves(values: Tensor) -> Tensor:
    return _pack(values.unflatten(1, (-1, 2)), 16)


def _halves_of(words: Tensor) -> Tensor:
    return _unpack(words, 16).long()


def _to_lanes(groups: Tensor, order: tuple[int, ...]) -> Tensor:
    """Groups [blocks, 32 rows, steps * 8] as those of each lane: [blocks, 32 lanes, steps * 8]."""
    split = groups.view(len(groups), *_group_axes(groups.shape[2]))
    return split.permute(0, *(axis + 1 for axis in order)).reshape(len(groups), LANES, -1)


def _to_groups(lanes: Tensor, order: tuple[int, ...]) -> Tensor:
    """The inverse of `_to_lanes`."""
    axes = _group_axes(lanes.shape[2])
    split = lanes.view(len(lanes), *(axes[axis] for axis in order))
    return split.permute(0, *(order.index(axis) + 1 for axis in range(6))).reshape(len(lanes), BLOCK_ROWS, -1)


def _group_axes(count: int) -> tuple[int, ...]:
    return 2, 2, 8, count // _REGISTERS, 2, 4
