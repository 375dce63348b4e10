"""Reading what nvdisasm prints, and the scheduling bits that it does not."""

from __future__ import annotations

import pytest

from impl.cuda import sass

LISTING = """
\t.headerflags\t@"EF_CUDA_SM70"
.text.kernel:
        /*0000*/                   MOV R1, c[0x0][0x28] ;                    /* 0x00000a0000017a02 */
                                                                             /* 0x000fe20000000f00 */
.L_x_0:
        /*0010*/                   LDS.U.128 R4, [R2+0x10] ;                 /* 0x0000100002047984 */
                                                                             /* 0x000e280000000c00 */
        /*0020*/              @!P0 HMMA.884.F32.F32.STEP0 R8, R4.reuse.ROW, R6.COL, R8 ;  /* 0x0000000604087236 */
                                                                             /* 0x021fe40000004008 */
        /*0030*/              @!PT LDS RZ, [RZ] ;                            /* 0x00000000ff0f7984 */
                                                                             /* 0x000fe20000000800 */
        /*0040*/               @P1 BRA `(.L_x_0) ;                           /* 0xffffffc000001947 */
                                                                             /* 0x000fea000383ffff */
"""


def test_instructions_with_their_scheduling():
    move, load, product, nothing, branch = sass.parse(LISTING)
    assert (move.opcode, move.operands, move.predicate, move.stall) == ("MOV", "R1, c[0x0][0x28]", "", 1)
    assert (load.address, load.name, load.stall) == (0x10, "LDS", 4)
    assert (load.write_barrier, load.read_barrier, load.waits) == (0, None, ())
    assert (product.name, product.predicate, product.stall, product.waits) == ("HMMA", "!P0", 2, (0, 5))
    assert product.operands == "R8, R4.reuse.ROW, R6.COL, R8"
    assert nothing.never
    assert not product.never
    assert (branch.target, branch.stall, branch.write_barrier) == (0x10, 5, None)


def test_without_nvdisasm_the_error_says_how_to_get_it(monkeypatch, tmp_path):
    for name in ("NVDISASM", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sass, "_nvdisasms", list)
    with pytest.raises(sass.DisassemblerMissing, match=r"none was found.*requirements/nvdisasm\.py") as missing:
        sass.disassemble(b"")
    assert "\n" not in str(missing.value)


def test_an_nvdisasm_that_refuses_is_named(monkeypatch, tmp_path):
    fake = tmp_path / "nvdisasm"
    fake.write_text("#!/bin/sh\necho 'nvdisasm fatal: SM70 is deprecated' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sass, "_nvdisasms", lambda: [str(fake)])
    with pytest.raises(sass.DisassemblerMissing, match="SM70 is deprecated"):
        sass.disassemble(b"")


def test_the_one_named_comes_first(monkeypatch, tmp_path):
    named = tmp_path / "nvdisasm"
    named.touch(0o755)
    monkeypatch.setenv("NVDISASM", str(named))
    assert sass._nvdisasms()[0] == str(named)
