# The routines of the copy that survives a fault. What each register means, and what a fault at any
# of these instructions leads to, is said in x86_64.rs. Intel syntax.

.pushsection .text.foliocache_usercopy_v0, "ax", @progbits
.macro FC_LABEL name
    .globl foliocache_uc0_\name
    .hidden foliocache_uc0_\name
    foliocache_uc0_\name:
.endm
.macro FC_FUNCTION name
    .type foliocache_uc0_\name, @function
    FC_LABEL \name
    .cfi_startproc
.endm
# `count` registers, from number `first` on, loaded from memory that begins at `at`, or stored there.
.macro FC_AVX_LOAD at, first, count
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    .if (\n >= \first) && (\n < \first+\count)
    vmovdqu ymm\n, [\at+32*(\n-\first)]
    .endif
    .endr
.endm
.macro FC_AVX_STORE move, at, first, count
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    .if (\n >= \first) && (\n < \first+\count)
    \move [\at+32*(\n-\first)], ymm\n
    .endif
    .endr
.endm
.macro FC_SSE_LOAD at, first, count
    .irp n, 0,1,2,3,4,5,6,7
    .if (\n >= \first) && (\n < \first+\count)
    movups xmm\n, [\at+16*(\n-\first)]
    .endif
    .endr
.endm
.macro FC_SSE_STORE move, at, first, count
    .irp n, 0,1,2,3,4,5,6,7
    .if (\n >= \first) && (\n < \first+\count)
    \move [\at+16*(\n-\first)], xmm\n
    .endif
    .endr
.endm
# Source and destination on to the destination's next multiple of `mask` + 1: 1 to `mask` + 1 bytes.
.macro FC_ALIGN mask
    mov rax, rdi
    or rax, \mask
    inc rax
    sub rax, rdi
    add rsi, rax
    add rdi, rax
.endm

# (rdi = destination, rsi = source, rdx = length, rcx = length from which on to use rep movsb)
#
# Loads run 256 bytes ahead of stores. A load that follows a store to the same place in another page
# (the low 12 bits of the addresses agree) waits for that store; a destination that is a little
# further into its page than the source (a buffer from malloc) would have that in every step.
.p2align 6
FC_FUNCTION copy_avx
FC_LABEL copy_avx_start
    cmp rdx, 128
    jbe .Lfc_copy_small
    lea r8, [rdi + rdx]
    cmp rdx, rcx
    jae .Lfc_copy_rep
    lea r9, [rsi + rdx]
    cmp rdx, 256
    ja .Lfc_copy_avx_large
    # 129 to 256: the first and the last 128 bytes.
    FC_AVX_LOAD rsi, 0, 4
    FC_AVX_LOAD r9-128, 4, 4
    FC_AVX_STORE vmovdqu, rdi, 0, 4
    FC_AVX_STORE vmovdqu, r8-128, 4, 4
    vzeroupper
    xor eax, eax
    ret
.Lfc_copy_avx_large:
    vmovdqu ymm0, [rsi]
    vmovdqu [rdi], ymm0
    # Over bytes that were all just copied.
    FC_ALIGN 31
    lea rax, [r8 - 512]
    lea rdx, [r8 - 256]
    cmp rdi, rdx
    jae .Lfc_copy_avx_tail
    FC_AVX_LOAD rsi, 0, 8
.p2align 5
.Lfc_copy_avx_loop:
    # The 256 bytes at rdi are in ymm0 to ymm7.
    cmp rdi, rax
    jae .Lfc_copy_avx_last
    FC_AVX_LOAD rsi+256, 8, 8
    FC_AVX_STORE vmovdqa, rdi, 0, 8
    add rsi, 256
    add rdi, 256
    # Now in ymm8 to ymm15.
    cmp rdi, rax
    jae .Lfc_copy_avx_last_other
    FC_AVX_LOAD rsi+256, 0, 8
    FC_AVX_STORE vmovdqa, rdi, 8, 8
    add rsi, 256
    add rdi, 256
    jmp .Lfc_copy_avx_loop
.Lfc_copy_avx_last:
    # At most 512 bytes left: those at rdi, and the last 256, which may overlap them.
    FC_AVX_LOAD r9-256, 8, 8
    FC_AVX_STORE vmovdqa, rdi, 0, 8
    FC_AVX_STORE vmovdqu, r8-256, 8, 8
    vzeroupper
    xor eax, eax
    ret
.Lfc_copy_avx_last_other:
    FC_AVX_LOAD r9-256, 0, 8
    FC_AVX_STORE vmovdqa, rdi, 8, 8
    FC_AVX_STORE vmovdqu, r8-256, 0, 8
    vzeroupper
    xor eax, eax
    ret
.Lfc_copy_avx_tail:
    # The last 256 bytes, of which some may be copied already.
    FC_AVX_LOAD r9-256, 0, 8
    FC_AVX_STORE vmovdqu, r8-256, 0, 8
    vzeroupper
    xor eax, eax
    ret
FC_LABEL copy_avx_end
.cfi_endproc

# The same with 16 bytes at a time. Everything short, and rep movsb, is here.
.p2align 6
FC_FUNCTION copy_sse
FC_LABEL copy_sse_start
    cmp rdx, 128
    ja .Lfc_copy_large
.Lfc_copy_small:
    lea r8, [rdi + rdx]
    cmp rdx, 16
    jb .Lfc_copy_0_15
    cmp rdx, 32
    ja .Lfc_copy_33_128
    movups xmm0, [rsi]
    movups xmm1, [rsi + rdx - 16]
    movups [rdi], xmm0
    movups [rdi + rdx - 16], xmm1
    xor eax, eax
    ret
.Lfc_copy_33_128:
    cmp rdx, 64
    ja .Lfc_copy_65_128
    FC_SSE_LOAD rsi, 0, 2
    FC_SSE_LOAD rsi+rdx-32, 2, 2
    FC_SSE_STORE movups, rdi, 0, 2
    FC_SSE_STORE movups, rdi+rdx-32, 2, 2
    xor eax, eax
    ret
.Lfc_copy_65_128:
    FC_SSE_LOAD rsi, 0, 4
    FC_SSE_LOAD rsi+rdx-64, 4, 4
    FC_SSE_STORE movups, rdi, 0, 4
    FC_SSE_STORE movups, rdi+rdx-64, 4, 4
    xor eax, eax
    ret
.Lfc_copy_0_15:
    cmp edx, 8
    jb .Lfc_copy_0_7
    mov rax, [rsi]
    mov rcx, [rsi + rdx - 8]
    mov [rdi], rax
    mov [rdi + rdx - 8], rcx
    xor eax, eax
    ret
.Lfc_copy_0_7:
    cmp edx, 4
    jb .Lfc_copy_0_3
    mov eax, [rsi]
    mov ecx, [rsi + rdx - 4]
    mov [rdi], eax
    mov [rdi + rdx - 4], ecx
    xor eax, eax
    ret
.Lfc_copy_0_3:
    cmp edx, 1
    jb .Lfc_copy_done
    je .Lfc_copy_1
    movzx eax, word ptr [rsi]
    movzx ecx, byte ptr [rsi + rdx - 1]
    mov [rdi], ax
    mov [rdi + rdx - 1], cl
    xor eax, eax
    ret
.Lfc_copy_1:
    movzx eax, byte ptr [rsi]
    mov [rdi], al
.Lfc_copy_done:
    xor eax, eax
    ret
.Lfc_copy_large:
    lea r8, [rdi + rdx]
    cmp rdx, rcx
    jae .Lfc_copy_rep
    lea r9, [rsi + rdx]
    movups xmm0, [rsi]
    movups [rdi], xmm0
    FC_ALIGN 15
    lea rax, [r8 - 64]
.p2align 5
.Lfc_copy_sse_loop:
    FC_SSE_LOAD rsi, 0, 4
    FC_SSE_STORE movaps, rdi, 0, 4
    add rsi, 64
    add rdi, 64
    cmp rdi, rax
    jb .Lfc_copy_sse_loop
    FC_SSE_LOAD r9-64, 0, 4
    FC_SSE_STORE movups, r8-64, 0, 4
    xor eax, eax
    ret
.Lfc_copy_rep:
# rep movsb is at its best from a destination that starts a cache line.
    FC_SSE_LOAD rsi, 0, 4
    FC_SSE_STORE movups, rdi, 0, 4
    FC_ALIGN 63
    mov rcx, r8
    sub rcx, rdi
    rep movsb
    xor eax, eax
    ret
FC_LABEL copy_sse_end
.cfi_endproc

# Where a fault in the two above goes on.
.p2align 4
FC_FUNCTION bytes_avx
    vzeroupper
FC_LABEL bytes
    mov ecx, 256
2:  cmp rdi, r8
    jae 3f
FC_LABEL bytes_load
    mov al, [rsi]
FC_LABEL bytes_store
    mov [rdi], al
    inc rsi
    inc rdi
    dec ecx
    jnz 2b
# Whatever was missing is there now: fast again, with the rest.
    mov rdx, r8
    sub rdx, rdi
    mov rcx, -1
    jmp foliocache_uc0_copy_sse
3:  xor eax, eax
    ret
FC_LABEL source_fault_avx
    vzeroupper
FC_LABEL source_fault
    mov rax, r8
    sub rax, rdi
    mov edx, 1
    ret
FC_LABEL destination_fault_avx
    vzeroupper
FC_LABEL destination_fault
    mov rax, r8
    sub rax, rdi
    mov edx, 2
    ret
.cfi_endproc

# (rdi = destination, rdx = length, rcx = length from which on to use rep stosb)
.p2align 6
FC_FUNCTION zero_avx
FC_LABEL zero_avx_start
    cmp rdx, 128
    jbe foliocache_uc0_zero_sse
    cmp rdx, rcx
    jae .Lfc_zero_rep
    lea r8, [rdi + rdx]
    vpxor xmm0, xmm0, xmm0
    vmovdqu [rdi], ymm0
    or rdi, 31
    inc rdi
    lea rax, [r8 - 128]
    cmp rdi, rax
    jae .Lfc_zero_avx_tail
.p2align 5
.Lfc_zero_avx_loop:
    vmovdqa [rdi], ymm0
    vmovdqa [rdi + 32], ymm0
    vmovdqa [rdi + 64], ymm0
    vmovdqa [rdi + 96], ymm0
    sub rdi, -128
    cmp rdi, rax
    jb .Lfc_zero_avx_loop
.Lfc_zero_avx_tail:
    vmovdqu [r8 - 128], ymm0
    vmovdqu [r8 - 96], ymm0
    vmovdqu [r8 - 64], ymm0
    vmovdqu [r8 - 32], ymm0
    vzeroupper
    xor eax, eax
    ret
FC_LABEL zero_avx_end
.cfi_endproc

.p2align 6
FC_FUNCTION zero_sse
FC_LABEL zero_sse_start
    lea r8, [rdi + rdx]
    pxor xmm0, xmm0
    cmp rdx, 16
    jb .Lfc_zero_0_15
    cmp rdx, rcx
    jae .Lfc_zero_rep
    movups [rdi], xmm0
    or rdi, 15
    inc rdi
    lea rax, [r8 - 16]
    cmp rdi, rax
    jae 3f
2:  movaps [rdi], xmm0
    add rdi, 16
    cmp rdi, rax
    jb 2b
3:  movups [r8 - 16], xmm0
    xor eax, eax
    ret
.Lfc_zero_rep:
    lea r8, [rdi + rdx]
    mov rcx, rdx
    xor eax, eax
    rep stosb
    ret
.Lfc_zero_0_15:
    xor eax, eax
    cmp edx, 8
    jb 4f
    mov [rdi], rax
    mov [rdi + rdx - 8], rax
    ret
4:  cmp edx, 4
    jb 5f
    mov [rdi], eax
    mov [rdi + rdx - 4], eax
    ret
5:  cmp edx, 1
    jb 6f
    mov [rdi], al
    mov [rdi + rdx - 1], al
    cmp edx, 3
    jb 6f
    mov [rdi + 1], al
6:  ret
FC_LABEL zero_sse_end
.cfi_endproc

.p2align 4
FC_FUNCTION zero_bytes_avx
    vzeroupper
FC_LABEL zero_bytes
    mov ecx, 256
2:  cmp rdi, r8
    jae 3f
FC_LABEL zero_bytes_store
    mov byte ptr [rdi], 0
    inc rdi
    dec ecx
    jnz 2b
    mov rdx, r8
    sub rdx, rdi
    mov rcx, -1
    jmp foliocache_uc0_zero_sse
3:  xor eax, eax
    ret
.cfi_endproc

# (rdi = address) -> 0, or 1 after a fault
.p2align 4
FC_FUNCTION touch_read
FC_LABEL touch_read_at
    mov al, [rdi]
    xor eax, eax
    ret
.cfi_endproc
.p2align 4
FC_FUNCTION touch_write
FC_LABEL touch_write_at
    lock or byte ptr [rdi], 0
    xor eax, eax
    ret
FC_LABEL touch_fault
    mov eax, 1
    ret
.cfi_endproc

.purgem FC_LABEL
.purgem FC_FUNCTION
.purgem FC_ALIGN
.purgem FC_SSE_STORE
.purgem FC_SSE_LOAD
.purgem FC_AVX_STORE
.purgem FC_AVX_LOAD
.popsection
