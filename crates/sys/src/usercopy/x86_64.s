# The routines of the copy that survives a fault. What each register means, and what a fault at any
# of these instructions leads to, is said in x86_64.rs. Intel syntax.

.pushsection .text.foliocache_usercopy_v0, "ax", @progbits
.macro FC_LABEL name
    .globl foliocache_uc0_\name
    .hidden foliocache_uc0_\name
    foliocache_uc0_\name:
.endm
.macro FC_FUNCTION name
    .globl foliocache_uc0_\name
    .hidden foliocache_uc0_\name
    .type foliocache_uc0_\name, @function
    foliocache_uc0_\name:
.endm

# (rdi = destination, rsi = source, rdx = length, rcx = length from which on to use rep movsb)
#
# Loads run 256 bytes ahead of stores. A load that follows a store to the same place in another page
# (the low 12 bits of the addresses agree) waits for that store; a destination that is a little
# further into its page than the source (a buffer from malloc) would have that in every step.
.p2align 6
FC_FUNCTION copy_avx
.cfi_startproc
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
    vmovdqu ymm0, [rsi]
    vmovdqu ymm1, [rsi + 32]
    vmovdqu ymm2, [rsi + 64]
    vmovdqu ymm3, [rsi + 96]
    vmovdqu ymm4, [r9 - 128]
    vmovdqu ymm5, [r9 - 96]
    vmovdqu ymm6, [r9 - 64]
    vmovdqu ymm7, [r9 - 32]
    vmovdqu [rdi], ymm0
    vmovdqu [rdi + 32], ymm1
    vmovdqu [rdi + 64], ymm2
    vmovdqu [rdi + 96], ymm3
    vmovdqu [r8 - 128], ymm4
    vmovdqu [r8 - 96], ymm5
    vmovdqu [r8 - 64], ymm6
    vmovdqu [r8 - 32], ymm7
    vzeroupper
    xor eax, eax
    ret
.Lfc_copy_avx_large:
    vmovdqu ymm0, [rsi]
    vmovdqu [rdi], ymm0
    # On to the next multiple of 32 of the destination: 1 to 32 bytes, all just copied.
    mov rax, rdi
    or rax, 31
    inc rax
    sub rax, rdi
    add rsi, rax
    add rdi, rax
    lea rax, [r8 - 512]
    lea rdx, [r8 - 256]
    cmp rdi, rdx
    jae .Lfc_copy_avx_tail
    vmovdqu ymm0, [rsi]
    vmovdqu ymm1, [rsi + 32]
    vmovdqu ymm2, [rsi + 64]
    vmovdqu ymm3, [rsi + 96]
    vmovdqu ymm4, [rsi + 128]
    vmovdqu ymm5, [rsi + 160]
    vmovdqu ymm6, [rsi + 192]
    vmovdqu ymm7, [rsi + 224]
.p2align 5
.Lfc_copy_avx_loop:
    # The 256 bytes at rdi are in ymm0 to ymm7.
    cmp rdi, rax
    jae .Lfc_copy_avx_last
    vmovdqu ymm8, [rsi + 256]
    vmovdqu ymm9, [rsi + 288]
    vmovdqu ymm10, [rsi + 320]
    vmovdqu ymm11, [rsi + 352]
    vmovdqu ymm12, [rsi + 384]
    vmovdqu ymm13, [rsi + 416]
    vmovdqu ymm14, [rsi + 448]
    vmovdqu ymm15, [rsi + 480]
    vmovdqa [rdi], ymm0
    vmovdqa [rdi + 32], ymm1
    vmovdqa [rdi + 64], ymm2
    vmovdqa [rdi + 96], ymm3
    vmovdqa [rdi + 128], ymm4
    vmovdqa [rdi + 160], ymm5
    vmovdqa [rdi + 192], ymm6
    vmovdqa [rdi + 224], ymm7
    add rsi, 256
    add rdi, 256
    # Now in ymm8 to ymm15.
    cmp rdi, rax
    jae .Lfc_copy_avx_last_other
    vmovdqu ymm0, [rsi + 256]
    vmovdqu ymm1, [rsi + 288]
    vmovdqu ymm2, [rsi + 320]
    vmovdqu ymm3, [rsi + 352]
    vmovdqu ymm4, [rsi + 384]
    vmovdqu ymm5, [rsi + 416]
    vmovdqu ymm6, [rsi + 448]
    vmovdqu ymm7, [rsi + 480]
    vmovdqa [rdi], ymm8
    vmovdqa [rdi + 32], ymm9
    vmovdqa [rdi + 64], ymm10
    vmovdqa [rdi + 96], ymm11
    vmovdqa [rdi + 128], ymm12
    vmovdqa [rdi + 160], ymm13
    vmovdqa [rdi + 192], ymm14
    vmovdqa [rdi + 224], ymm15
    add rsi, 256
    add rdi, 256
    jmp .Lfc_copy_avx_loop
.Lfc_copy_avx_last:
    # At most 512 bytes left: those at rdi, and the last 256, which may overlap them.
    vmovdqu ymm8, [r9 - 256]
    vmovdqu ymm9, [r9 - 224]
    vmovdqu ymm10, [r9 - 192]
    vmovdqu ymm11, [r9 - 160]
    vmovdqu ymm12, [r9 - 128]
    vmovdqu ymm13, [r9 - 96]
    vmovdqu ymm14, [r9 - 64]
    vmovdqu ymm15, [r9 - 32]
    vmovdqa [rdi], ymm0
    vmovdqa [rdi + 32], ymm1
    vmovdqa [rdi + 64], ymm2
    vmovdqa [rdi + 96], ymm3
    vmovdqa [rdi + 128], ymm4
    vmovdqa [rdi + 160], ymm5
    vmovdqa [rdi + 192], ymm6
    vmovdqa [rdi + 224], ymm7
    vmovdqu [r8 - 256], ymm8
    vmovdqu [r8 - 224], ymm9
    vmovdqu [r8 - 192], ymm10
    vmovdqu [r8 - 160], ymm11
    vmovdqu [r8 - 128], ymm12
    vmovdqu [r8 - 96], ymm13
    vmovdqu [r8 - 64], ymm14
    vmovdqu [r8 - 32], ymm15
    vzeroupper
    xor eax, eax
    ret
.Lfc_copy_avx_last_other:
    vmovdqu ymm0, [r9 - 256]
    vmovdqu ymm1, [r9 - 224]
    vmovdqu ymm2, [r9 - 192]
    vmovdqu ymm3, [r9 - 160]
    vmovdqu ymm4, [r9 - 128]
    vmovdqu ymm5, [r9 - 96]
    vmovdqu ymm6, [r9 - 64]
    vmovdqu ymm7, [r9 - 32]
    vmovdqa [rdi], ymm8
    vmovdqa [rdi + 32], ymm9
    vmovdqa [rdi + 64], ymm10
    vmovdqa [rdi + 96], ymm11
    vmovdqa [rdi + 128], ymm12
    vmovdqa [rdi + 160], ymm13
    vmovdqa [rdi + 192], ymm14
    vmovdqa [rdi + 224], ymm15
    vmovdqu [r8 - 256], ymm0
    vmovdqu [r8 - 224], ymm1
    vmovdqu [r8 - 192], ymm2
    vmovdqu [r8 - 160], ymm3
    vmovdqu [r8 - 128], ymm4
    vmovdqu [r8 - 96], ymm5
    vmovdqu [r8 - 64], ymm6
    vmovdqu [r8 - 32], ymm7
    vzeroupper
    xor eax, eax
    ret
.Lfc_copy_avx_tail:
    # The last 256 bytes, of which some may be copied already.
    vmovdqu ymm0, [r9 - 256]
    vmovdqu ymm1, [r9 - 224]
    vmovdqu ymm2, [r9 - 192]
    vmovdqu ymm3, [r9 - 160]
    vmovdqu ymm4, [r9 - 128]
    vmovdqu ymm5, [r9 - 96]
    vmovdqu ymm6, [r9 - 64]
    vmovdqu ymm7, [r9 - 32]
    vmovdqu [r8 - 256], ymm0
    vmovdqu [r8 - 224], ymm1
    vmovdqu [r8 - 192], ymm2
    vmovdqu [r8 - 160], ymm3
    vmovdqu [r8 - 128], ymm4
    vmovdqu [r8 - 96], ymm5
    vmovdqu [r8 - 64], ymm6
    vmovdqu [r8 - 32], ymm7
    vzeroupper
    xor eax, eax
    ret
FC_LABEL copy_avx_end
.cfi_endproc

# The same with 16 bytes at a time. Everything short, and rep movsb, is here.
.p2align 6
FC_FUNCTION copy_sse
.cfi_startproc
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
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + rdx - 32]
    movups xmm3, [rsi + rdx - 16]
    movups [rdi], xmm0
    movups [rdi + 16], xmm1
    movups [rdi + rdx - 32], xmm2
    movups [rdi + rdx - 16], xmm3
    xor eax, eax
    ret
.Lfc_copy_65_128:
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + 32]
    movups xmm3, [rsi + 48]
    movups xmm4, [rsi + rdx - 64]
    movups xmm5, [rsi + rdx - 48]
    movups xmm6, [rsi + rdx - 32]
    movups xmm7, [rsi + rdx - 16]
    movups [rdi], xmm0
    movups [rdi + 16], xmm1
    movups [rdi + 32], xmm2
    movups [rdi + 48], xmm3
    movups [rdi + rdx - 64], xmm4
    movups [rdi + rdx - 48], xmm5
    movups [rdi + rdx - 32], xmm6
    movups [rdi + rdx - 16], xmm7
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
    mov rax, rdi
    or rax, 15
    inc rax
    sub rax, rdi
    add rsi, rax
    add rdi, rax
    lea rax, [r8 - 64]
.p2align 5
.Lfc_copy_sse_loop:
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + 32]
    movups xmm3, [rsi + 48]
    movaps [rdi], xmm0
    movaps [rdi + 16], xmm1
    movaps [rdi + 32], xmm2
    movaps [rdi + 48], xmm3
    add rsi, 64
    add rdi, 64
    cmp rdi, rax
    jb .Lfc_copy_sse_loop
    movups xmm0, [r9 - 64]
    movups xmm1, [r9 - 48]
    movups xmm2, [r9 - 32]
    movups xmm3, [r9 - 16]
    movups [r8 - 64], xmm0
    movups [r8 - 48], xmm1
    movups [r8 - 32], xmm2
    movups [r8 - 16], xmm3
    xor eax, eax
    ret
.Lfc_copy_rep:
# rep movsb is at its best from a destination that starts a cache line.
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + 32]
    movups xmm3, [rsi + 48]
    movups [rdi], xmm0
    movups [rdi + 16], xmm1
    movups [rdi + 32], xmm2
    movups [rdi + 48], xmm3
    mov rax, rdi
    or rax, 63
    inc rax
    sub rax, rdi
    add rsi, rax
    add rdi, rax
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
.cfi_startproc
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
.cfi_startproc
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
.cfi_startproc
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
.cfi_startproc
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
.cfi_startproc
FC_LABEL touch_read_at
    mov al, [rdi]
    xor eax, eax
    ret
.cfi_endproc
.p2align 4
FC_FUNCTION touch_write
.cfi_startproc
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
.popsection
