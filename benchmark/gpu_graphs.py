"""Would CUDA graphs pay in ppo_atari_envpool.py? An experiment, and a part of gpu.sh.

    python benchmark/gpu_graphs.py --folder runs/gpu

A graph replays a step of acting, or a minibatch's loss, gradient and Adam step, as one launch instead of some hundred.
First: 50 minibatches from the same weights, eager and by graph, and how far apart they end (graphs.csv).
Then: steps per second of a training that acts and learns by graphs (speeds.csv). On a CPU the same functions are called
without a graph, which tries the code out.
"""

import csv
import math
import sys
import traceback

import numpy as np
import torch
import torch.nn as nn
import tyro
from gpu_kit import Args, Row, load_script, measure_all

BATCHES = 50

script = load_script("ppo_atari_envpool")


class Graph:
    """A function without arguments that only works on tensors of fixed places. Captured once, replayed by call."""

    def __init__(self, function, device: torch.device):
        self.graph = None
        self.function = function
        stream = torch.cuda.Stream() if device.type == "cuda" else None
        if stream is None:
            return
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # warms up: kernels are chosen and memory is taken
            for _ in range(3):
                function()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            function()

    def __call__(self) -> None:
        if self.graph is None:
            self.function()
        else:
            self.graph.replay()


class Learner:
    """A minibatch step on a batch of fixed place; what a graph of it needs: `indices` to set, `sums` of the metrics."""

    def __init__(self, agent, batch, args, device: torch.device, capturable: bool):
        self.agent = agent
        self.batch = batch
        self.args = args
        self.parameters = list(agent.parameters())
        rate = args.learning_rate
        if capturable:  # in a graph, what changes must be a tensor
            rate = torch.tensor(rate, device=device)
        capturable = capturable and device.type == "cuda"
        self.optimizer = torch.optim.Adam(self.parameters, lr=rate, eps=1e-5, fused=True, capturable=capturable)
        self.indices = torch.zeros(args.batch_size // args.num_minibatches, dtype=torch.int64, device=device)
        self.sums = torch.zeros(6, device=device)
        self.names = []

    def step(self) -> None:
        mb = script.Batch(*(x.index_select(0, self.indices) for x in self.batch))
        log_prob, entropy, value = self.agent.evaluate_actions(mb.obs, mb.actions)
        loss, metrics = script.ppo_loss(log_prob, entropy, value, mb, self.args.clip_coef, self.args)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, self.args.max_grad_norm)
        self.optimizer.step()
        self.names = list(metrics)
        self.sums.add_(torch.stack([x.detach() for x in metrics.values()]))

    def capture(self, device: torch.device) -> Graph:
        """A graph of a step. Warming up changes weights, which are put back, and Adam's state, which was all zeros."""
        before = [parameter.detach().clone() for parameter in self.parameters]
        graph = Graph(self.step, device)
        with torch.no_grad():
            for parameter, value in zip(self.parameters, before):
                parameter.copy_(value)
        for state in self.optimizer.state.values():
            for tensor in state.values():
                tensor.zero_()
        self.sums.zero_()
        return graph


# ---------------------------------------------------------------------------------------------------------- Same result
def random_batch(agent, args, shape: tuple, device: torch.device):
    """A batch as a rollout of a fresh agent leaves it, but of noise."""
    size = args.batch_size
    obs = torch.randint(0, 256, (size, *shape), dtype=torch.uint8, device=device)
    noise = agent.draw_noise(size).to(device)
    with torch.no_grad():
        actions, log_probs, values = agent.get_action_and_value(obs, noise)
    advantages = torch.randn(size, device=device)
    valid = (torch.rand(size, device=device) > 0.01).float()
    return script.Batch(obs, actions, log_probs, values, advantages, values + advantages, valid)


def learn(
    by_graph: bool, capturable: bool, args, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights before and after BATCHES minibatches, and the metrics' means; the same data and weights at each call."""
    envs = script.VectorEnv(args, args.num_envs)
    torch.manual_seed(1)
    agent = script.Agent(envs, args).to(device)
    batch = random_batch(agent, args, envs.observation_space.shape, device)
    learner = Learner(agent, batch, args, device, capturable=capturable)
    before = nn.utils.parameters_to_vector(learner.parameters).detach().clone()
    step = learner.capture(device) if by_graph else learner.step
    torch.manual_seed(2)
    count = 0
    while count < BATCHES:
        for indices in torch.randperm(args.batch_size, device=device).split(len(learner.indices)):
            if count < BATCHES:
                learner.indices.copy_(indices)
                step()
                count += 1
    after = nn.utils.parameters_to_vector(learner.parameters).detach().clone()
    return before, after, learner.sums / BATCHES


def compare(args, device: torch.device) -> list[dict]:
    """How far weights and metrics are apart: eager again, since kernels may not repeat bit for bit; with the graph's
    Adam, whose learning rate and step are tensors; and by graph."""
    before, eager, eager_metrics = learn(False, False, args, device)
    lines = []
    ways = (("eager again", False, False), ("eager, the graph's Adam", False, True), ("by graph", True, True))
    for name, by_graph, capturable in ways:
        _, after, metrics = learn(by_graph, capturable, args, device)
        line = {
            "compared with eager": name,
            "minibatches": BATCHES,
            "largest change of a weight": f"{(eager - before).abs().max().item():.3g}",
            "largest difference of a weight": f"{(after - eager).abs().max().item():.3g}",
            "largest difference of a metric": f"{(metrics - eager_metrics).abs().max().item():.3g}",
        }
        lines.append(line)
        print(line, flush=True)
    return lines


# ---------------------------------------------------------------------------------------------------------------- Speed
def train(args, run) -> None:
    """ppo_atari_envpool.py's train, for a run that isn't resumed, without --target-kl and --bootstrap-truncated."""
    device = torch.device(args.device)
    envs = script.VectorEnv(args, args.num_envs)
    torch.manual_seed(args.seed)
    agent = script.Agent(envs, args).to(device)
    T, N, M = args.num_steps, args.num_envs, args.batch_size // args.num_minibatches
    obs = torch.zeros((T, N, *envs.observation_space.shape), dtype=torch.uint8, device=device)
    actions = torch.zeros((T, N), dtype=torch.int64, device=device)
    log_probs, acted_values, advantages_d, returns_d, valid_d = torch.zeros((5, T, N), device=device)
    noise = torch.zeros((T, N, agent.num_actions), device=device)
    new_obs = torch.zeros_like(obs[0])  # where each step's observations are put
    drawn = torch.zeros_like(actions[0])
    row = torch.zeros(1, dtype=torch.int64, device=device)  # the step, counted in the graph
    rewards = np.zeros((T, N), np.float32)
    dones = np.zeros((T, N), np.float32)

    def act() -> None:
        action, log_prob, value = agent.get_action_and_value(new_obs, noise.index_select(0, row)[0])
        obs.index_copy_(0, row, new_obs[None])
        actions.index_copy_(0, row, action[None])
        log_probs.index_copy_(0, row, log_prob[None])
        acted_values.index_copy_(0, row, value[None])
        drawn.copy_(action)
        row.add_(1)

    parts = (obs, actions, log_probs, acted_values, advantages_d, returns_d, valid_d)
    learner = Learner(agent, script.Batch(*(x.flatten(0, 1) for x in parts)), args, device, capturable=True)
    run.keep(model=agent, envs=envs)
    graph_learn = learner.capture(device)
    with torch.no_grad():
        graph_act = Graph(act, device)

    for update, fresh_episodes in run.updates():
        remaining = 1.0 - (update - 1) / args.num_updates
        for group in learner.optimizer.param_groups:
            group["lr"].fill_(args.learning_rate * remaining)
        torch.manual_seed(np.random.SeedSequence([args.seed, update]).generate_state(1).item())
        if fresh_episodes:
            next_obs = envs.reset(torch.randint(2**31, (N,)).tolist())
            next_done = np.zeros(N, np.float32)
        noise.copy_(agent.draw_noise(T, N))
        row.zero_()
        with torch.no_grad():
            for step in range(T):
                dones[step] = next_done
                new_obs.copy_(torch.from_numpy(next_obs))
                graph_act()
                next_obs, rewards[step], next_done, _, episodes = envs.step(drawn.cpu().numpy())
                run.note(next_obs, rewards[step], episodes)
            next_value = agent.get_value(torch.from_numpy(next_obs).to(device)).cpu().numpy()
        values = acted_values.cpu().numpy()
        gammas = (args.gamma, args.gae_lambda)
        advantages, returns = script.compute_gae(rewards, values, dones, next_value, next_done, *gammas)
        advantages_d.copy_(torch.from_numpy(advantages))
        returns_d.copy_(torch.from_numpy(returns))
        valid_d.copy_(torch.from_numpy(1.0 - dones))
        learner.sums.zero_()
        for _ in range(args.update_epochs):
            for indices in torch.randperm(args.batch_size, device=device).split(M):
                learner.indices.copy_(indices)
                graph_learn()
        means = (learner.sums / (args.update_epochs * args.num_minibatches)).tolist()
        metrics = {"charts/learning_rate": args.learning_rate * remaining, **dict(zip(learner.names, means))}
        metrics["losses/explained_variance"] = math.nan
        run.log(metrics)


def main(args: Args) -> None:
    device = torch.device(args.device)
    torch.set_num_threads(1)
    args.folder = args.folder.resolve()
    args.folder.mkdir(parents=True, exist_ok=True)
    sizes = {"num_envs": 8, "num_steps": 16 if args.small else 128, "device": args.device}
    lines = compare(script.Args(**sizes), device)
    with open(args.folder / "graphs.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    rows = []
    for games in (8, 64):
        rows.append(Row(f"ppo_atari_envpool, {games} games, fp32, CUDA graphs", script.__name__, {"num_envs": games}))
    measure_all(rows, args, train)


if __name__ == "__main__":
    try:
        main(tyro.cli(Args, description=__doc__))
    except Exception:  # the kit goes on without it
        traceback.print_exc()
        sys.exit(1)
