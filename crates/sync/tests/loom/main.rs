//! The models that loom runs, in one program.
#![cfg(loom)]

mod canary;
mod counter;
mod durability;
mod facade;
mod lockref;
mod rcu;
mod seqcount;
mod wait;
